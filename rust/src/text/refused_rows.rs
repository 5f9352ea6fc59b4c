//! Errors for rows that are refused: rows with invalid UTF-8, and rows with too many bytes.

use std::path::Path;

use crate::error::{Error, Place};
use crate::text::reader::ReadOptions;

/// Returns the error for a row with more than [`ReadOptions::max_line_bytes`] bytes.
pub(super) fn row_too_long(
    path: &Path,
    column: Option<&String>,
    line: u64,
    options: &ReadOptions,
) -> Error {
    Error::LineTooLong {
        path: path.to_owned(),
        place: place(column, line, None),
        limit: options.max_line_bytes,
    }
}

/// Returns the error for the first invalid byte in `bytes`, which is at position `at`.
///
/// The first row in `bytes` has line number `first_line` and byte offset `offset` in the file.
pub(super) fn invalid_utf8(
    path: &Path,
    column: Option<&String>,
    bytes: &[u8],
    at: usize,
    first_line: u64,
    offset: u64,
) -> Error {
    let before = memchr::memchr_iter(b'\n', &bytes[..at]).count() as u64;
    Error::InvalidUtf8 {
        path: path.to_owned(),
        place: place(column, first_line + before, Some(offset + at as u64)),
    }
}

/// Returns the position of a line, or of a row of a table.
fn place(column: Option<&String>, line: u64, offset: Option<u64>) -> Place {
    match column {
        Some(column) => Place::Row {
            row: line,
            column: column.clone(),
        },
        None => Place::Line { line, offset },
    }
}

/// Returns the numbers of the rows in `bytes` that are not valid UTF-8, counted from 0.
pub(super) fn faulty_rows(bytes: &[u8]) -> Vec<u64> {
    let rows = (0..).zip(bytes.split(|&b| b == b'\n'));
    rows.filter(|(_, row)| std::str::from_utf8(row).is_err())
        .map(|(nth, _)| nth)
        .collect()
}
