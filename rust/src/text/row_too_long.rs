//! Handles rows with too many bytes: they are an error, or are truncated if [`ReadOptions::lenient`] is set.

use std::path::Path;

use crate::error::{Error, Place};
use crate::text::input::ReadOptions;

/// Returns the error for a row with more than [`ReadOptions::max_line_bytes`] bytes.
pub(super) fn row_too_long(path: &Path, column: Option<&String>, line: u64, options: &ReadOptions) -> Error {
    Error::LineTooLong { path: path.to_owned(), place: Place::new(column, line, None), limit: options.max_line_bytes }
}

/// Returns the beginning of a text: at most `len` bytes, cut at a character boundary.
pub(crate) fn prefix(text: &str, len: usize) -> &str {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
