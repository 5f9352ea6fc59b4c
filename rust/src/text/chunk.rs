//! Chunks of whole rows, which are decoded and passed on row by row.

use std::path::PathBuf;

use crate::error::Result;
use crate::text::invalid_utf8::{decode, invalid_utf8};
use crate::text::reader::ReadOptions;
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
            invalid_utf8(
                &self.path,
                self.column.as_ref(),
                &self.bytes,
                at,
                self.first_line,
                self.offset,
            )
        })?;
        if let Some(first) = faulty.first() {
            self.repaired = faulty.len() as u64;
            self.first_repaired = Some(self.first_row + first);
        }
        let bytes = text.as_bytes();
        let (mut start, mut row) = (0, self.first_row);
        while start < bytes.len() {
            let end = memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |k| start + k);
            let mut line = &text[start..end];
            let too_long = line.len() > self.options.max_line_bytes;
            if too_long && !self.options.lenient {
                let line = self.first_line + row - self.first_row;
                return Err(row_too_long(
                    &self.path,
                    self.column.as_ref(),
                    line,
                    &self.options,
                ));
            }
            if too_long {
                line = prefix(line, self.options.max_line_bytes);
            }
            f(row, line.strip_suffix('\r').unwrap_or(line), too_long);
            row += 1;
            start = end + 1;
        }
        Ok(())
    }

    /// Returns the size of the chunk in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }
}
