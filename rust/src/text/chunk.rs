//! Chunks of whole rows, which are decoded and passed on row by row.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::text::input::{Prepare, ReadOptions};
use crate::text::invalid_utf8::{decode, invalid_utf8};
use crate::text::row_ends::{rows, without_final_cr};
use crate::text::row_too_long::{prefix, row_too_long};

/// Whole rows of one file.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Number of the chunk: 0, 1, 2, ... in the order of the corpus.
    pub seq: u64,
    /// Number of the chunk's first row, counted over all files from 0.
    pub first_row: u64,
    /// Number of rows in which invalid bytes were replaced (see [`EncodingErrors`](crate::EncodingErrors)). This field
    /// and `first_repaired` are set by `for_each_row` and `for_each_cut_row`.
    pub repaired: u64,
    /// Number of the first row in which invalid bytes were replaced, counted like `first_row`.
    pub first_repaired: Option<u64>,
    pub(super) bytes: Vec<u8>,
    pub(super) path: PathBuf,
    pub(super) column: Option<String>,
    /// Line number of the first row in its file, from 1.
    pub(super) first_line: u64,
    /// Byte offset of the first row in the decoded text.
    pub(super) offset: u64,
    pub(super) options: ReadOptions,
}

impl Chunk {
    /// Calls `f(row number, text)` for every row, blank rows included. The text has no `\n` and no final `\r`.
    pub fn for_each_row(&mut self, mut f: impl FnMut(u64, &str)) -> Result<()> {
        self.for_each_cut_row(|row, text, _| f(row, text))
    }

    /// Does the same as [`for_each_row`](Self::for_each_row), but `f` has a third argument: whether the row is too long
    /// and was truncated, which happens only if [`ReadOptions::lenient`] is set.
    pub fn for_each_cut_row(&mut self, mut f: impl FnMut(u64, &str, bool)) -> Result<()> {
        let decoded = decode(&self.bytes, self.options.encoding_errors);
        let (text, faulty) = decoded.map_err(|at| {
            invalid_utf8(&self.path, self.column.as_ref(), &self.bytes, at, self.first_line, self.offset)
        })?;
        if let Some(first) = faulty.first() {
            self.repaired = faulty.len() as u64;
            self.first_repaired = Some(self.first_row + first);
        }
        let mut prepared = self.prepared(&text)?.into_iter();
        for (nth, mut row) in (0..).zip(rows(&text)) {
            let too_long = row.len() > self.options.max_line_bytes;
            if too_long && !self.options.lenient {
                return Err(row_too_long(&self.path, self.column.as_ref(), self.first_line + nth, &self.options));
            }
            if too_long {
                row = prefix(row, self.options.max_line_bytes);
            }
            let row = without_final_cr(row);
            let other = prepared.next();
            f(self.first_row + nth, other.as_deref().unwrap_or(row), too_long);
        }
        Ok(())
    }

    /// Returns the rows as changed by [`ReadOptions::prepare`]; none if it is not set.
    fn prepared(&self, text: &str) -> Result<Vec<String>> {
        let Some(Prepare(prepare)) = &self.options.prepare else {
            return Ok(Vec::new());
        };
        let rows: Vec<&str> = rows(text).map(without_final_cr).collect();
        prepare(&rows).map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Returns the size of the chunk in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }
}
