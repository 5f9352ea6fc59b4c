//! Handles bytes that are not valid UTF-8: reports an error, or replaces the bytes with U+FFFD.

use std::borrow::Cow;
use std::path::Path;

use crate::error::{Error, Named, Place};

/// Handling of bytes that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodingErrors {
    /// Return an error that names the line and the byte offset.
    Strict,
    /// Replace these bytes with U+FFFD, and count the rows in which this happened.
    Replace,
}

impl Named for EncodingErrors {
    const FLAG: &'static str = "--encoding-errors";
    const NAMES: &'static [(&'static str, Self)] =
        &[("strict", EncodingErrors::Strict), ("replace", EncodingErrors::Replace)];
}

/// Decodes whole rows.
///
/// Returns the text, and the indices (from 0) of the rows in which bytes were replaced. With
/// [`EncodingErrors::Strict`], the error is the position of the first invalid byte.
pub(super) fn decode(bytes: &[u8], errors: EncodingErrors) -> Result<(Cow<'_, str>, Vec<u64>), usize> {
    match (std::str::from_utf8(bytes), errors) {
        (Ok(text), _) => Ok((Cow::Borrowed(text), Vec::new())),
        (Err(error), EncodingErrors::Strict) => Err(error.valid_up_to()),
        (Err(_), EncodingErrors::Replace) => Ok((String::from_utf8_lossy(bytes), faulty_rows(bytes))),
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
        place: Place::new(column, first_line + before, Some(offset + at as u64)),
    }
}

/// Returns the indices, from 0, of the rows in `bytes` that are not valid UTF-8.
fn faulty_rows(bytes: &[u8]) -> Vec<u64> {
    let rows = (0..).zip(bytes.split(|&b| b == b'\n'));
    rows.filter(|(_, row)| std::str::from_utf8(row).is_err()).map(|(nth, _)| nth).collect()
}
