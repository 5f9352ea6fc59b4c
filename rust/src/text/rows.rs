//! The rows of a corpus, in memory or in files that can be mapped into memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::reader::{FileRecord, Input, ReadOptions, Reader, collect_results};
use crate::text::row::{count_words, row_key, row_keys};

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

    /// Returns the key of each row; rows whose texts differ only in case, white space, composition and
    /// characters that nobody sees have equal keys.
    pub fn keys(&self) -> Vec<u64> {
        row_keys(self.iter())
    }
}

/// A file that is being written, with its path for error messages.
struct Part {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Part {
    fn create(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::create(&path).map_err(|source| Error::io(&path, source))?;
        Ok(Part { path, file: BufWriter::with_capacity(1 << 20, file) })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| Error::io(&self.path, source))
    }

    fn close(mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::io(&self.path, source))
    }
}

/// Writes the rows of `files`, in order, into the existing folder `dir`:
///
/// * `rows.txt`: the texts of the rows, one after the other, without separators;
/// * `ends.u64`: the byte offset of the end of each row in `rows.txt`;
/// * `words.u32`: the number of words in each row, as counted by [`count_words`]; 0 for a blank row;
/// * `hashes.u64`: the XXH3 hash (64 bits) of each row;
/// * `keys.u64`: the key of each row, see [`row_key`].
///
/// All numbers are little-endian. Only one chunk is held in memory at a time. Returns the number of rows, the records of
/// the files, and the number of rows in which bytes that are not UTF-8 were replaced.
pub fn write(
    files: Vec<Input>,
    options: ReadOptions,
    dir: &Path,
    progress: &Progress,
) -> Result<(u64, Vec<FileRecord>, u64)> {
    let reader = Reader::open(files, options, progress)?;
    let mut parts = [
        Part::create(dir, "rows.txt")?,
        Part::create(dir, "ends.u64")?,
        Part::create(dir, "words.u32")?,
        Part::create(dir, "hashes.u64")?,
        Part::create(dir, "keys.u64")?,
    ];
    let (mut rows, mut end, mut repaired) = (0u64, 0u64, 0u64);
    let (mut failure, mut buffer) = (None, String::new());
    collect_results(vec![reader.work(|chunk| {
        chunk.for_each_row(|_, row| {
            rows += 1;
            end += row.len() as u64;
            let values: [&[u8]; 5] = [
                row.as_bytes(),
                &end.to_le_bytes(),
                &count_words(row).to_le_bytes(),
                &xxh3_64(row.as_bytes()).to_le_bytes(),
                &row_key(row, &mut buffer).to_le_bytes(),
            ];
            for (part, bytes) in parts.iter_mut().zip(values) {
                if failure.is_none() {
                    failure = part.put(bytes).err();
                }
            }
        })?;
        repaired += chunk.repaired;
        failure.take().map_or(Ok(()), Err)
    })])?;
    for part in parts {
        part.close()?;
    }
    Ok((rows, reader.into_records()?, repaired))
}
