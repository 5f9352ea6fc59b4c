//! The rows of a corpus in memory.

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::blank::count_words;
use crate::text::reader::{FileRecord, Input, ReadOptions, Reader, collect_results};
use crate::text::row_key::row_keys;

/// All rows of some files: their texts in one buffer, and the end of each row in this buffer.
#[derive(Debug, Default)]
pub struct Rows {
    text: String,
    ends: Vec<usize>,
    pub files: Vec<FileRecord>,
    /// Number of rows in which bytes that are not UTF-8 were replaced.
    pub repaired: u64,
}

impl Rows {
    /// Reads `files` in order.
    pub fn read(files: Vec<Input>, options: ReadOptions, progress: &Progress) -> Result<Self> {
        let rows = Rows::read_up_to(files, options, usize::MAX, progress)?;
        Ok(rows.unwrap_or_default())
    }

    /// Reads `files` in order; returns `None` as soon as the rows take more than `most` bytes of memory.
    pub fn read_up_to(
        files: Vec<Input>,
        options: ReadOptions,
        most: usize,
        progress: &Progress,
    ) -> Result<Option<Self>> {
        let reader = Reader::open(files, options, progress)?;
        let (mut rows, mut over) = (Rows::default(), false);
        let read = collect_results(vec![reader.work(|chunk| {
            chunk.for_each_row(|_, row| {
                rows.text.push_str(row);
                rows.ends.push(rows.text.len());
            })?;
            rows.repaired += chunk.repaired;
            over = rows.text.len() + size_of_val(&rows.ends[..]) > most;
            if over { Err(Error::Interrupted) } else { Ok(()) }
        })]);
        if over {
            return Ok(None);
        }
        read?;
        rows.files = reader.into_records()?;
        Ok(Some(rows))
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the text of a row, or `None` if `row` is out of range.
    pub fn get(&self, row: usize) -> Option<&str> {
        let end = *self.ends.get(row)?;
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        Some(&self.text[start..end])
    }

    /// Iterates over the texts of all rows.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|row| self.get(row))
    }

    /// Returns the number of words in each row, as counted by [`count_words`]; a blank row has 0.
    pub fn word_counts(&self) -> Vec<u32> {
        self.iter().map(count_words).collect()
    }

    /// Returns the XXH3 hash (64 bits) of the text of each row; equal rows have equal hashes.
    pub fn hashes(&self) -> Vec<u64> {
        self.iter().map(|row| xxh3_64(row.as_bytes())).collect()
    }

    /// Returns the key of each row; rows whose texts differ only in case, white space and composition have equal keys.
    pub fn keys(&self) -> Vec<u64> {
        row_keys(self.iter())
    }
}
