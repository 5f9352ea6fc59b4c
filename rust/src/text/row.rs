//! Rows of a corpus: where they end, which are blank, which are the same text, and what is refused or repaired in them.
//!
//! Rows end at `\n` and nowhere else. `\r` at the end of a row is dropped; U+2028, U+2029, U+0085, `\x1c` to `\x1f` and
//! a `\r` elsewhere are part of the row. A text file that has `\r` but no `\n` is an error (`reader.rs`), because it
//! would be a single row. Rows with too many bytes are an error, or are truncated if `ReadOptions::lenient` is set;
//! bytes that are not UTF-8 are an error, or are replaced with U+FFFD.
//!
//! Blank rows are numbered like other rows. A blank row is not a document of an index (`index/stats.rs`), has no
//! negative (`una/augment.rs`), and is left out of training (`filled` in `python/cse/data/corpus.py`) and search; its
//! embedding is zero. The Python code recognises blank rows by their number of words, or with `is_blank` of the
//! extension module.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::path::Path;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Named, Place};

/// Whether `c` is white space according to Python's `str.isspace`: Unicode white space and the separators U+001C to
/// U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Whether nobody sees `c`: a control character that is not white space, or a code point with the property
/// Default_Ignorable_Code_Point of Unicode 17 (DerivedCoreProperties.txt), such as the zero-width space, the soft hyphen,
/// marks of direction and variation selectors. They are no part of the key of a row, but stay in its text, because some
/// join words or emoji.
pub fn is_unseen(c: char) -> bool {
    match c {
        '\0'..='\u{9f}' => c.is_control() && !is_space(c),
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' => true,
        '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' => true,
        '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

/// Whether a row contains only white space and characters that nobody sees.
pub fn is_blank(row: &str) -> bool {
    row.chars().all(|c| is_space(c) || is_unseen(c))
}

/// Returns the number of words in a row. Words are separated by white space and have a character that is seen; a blank
/// row has 0 words.
pub fn count_words(row: &str) -> u32 {
    row.split(is_space).filter(|word| !word.chars().all(is_unseen)).count() as u32
}

/// Returns the rows of a text that begins with a row, without `\n`. A row may still end with `\r`.
pub(super) fn rows(text: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = text.get(start..).filter(|rest| !rest.is_empty())?;
        let end = memchr::memchr(b'\n', rest.as_bytes()).unwrap_or(rest.len());
        start += end + 1;
        Some(&rest[..end])
    })
}

/// Returns a row without a final `\r`.
pub(super) fn without_final_cr(row: &str) -> &str {
    row.strip_suffix('\r').unwrap_or(row)
}

/// Whether `start`, the beginning of a file without `\n`, has `\r` before its last byte.
pub(super) fn has_cr_inside(start: &[u8]) -> bool {
    let inside = &start[..start.len().saturating_sub(1)];
    memchr::memchr(b'\r', inside).is_some()
}

/// Returns the error for a row with more than `limit` bytes.
pub(super) fn row_too_long(path: &Path, column: Option<&String>, line: u64, limit: usize) -> Error {
    Error::LineTooLong { path: path.to_owned(), place: Place::new(column, line, None), limit }
}

/// Returns the beginning of a text: at most `len` bytes, cut at a character boundary.
pub(crate) fn prefix(text: &str, len: usize) -> &str {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

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

/// Returns the XXH3 hash (64 bits) of the normalised text of a row: without characters that nobody sees, in NFC, case
/// folded, each run of white space replaced by a space, and without white space at both ends. `buffer` is overwritten.
///
/// White space is found before other characters are removed: a tab stays a space, although it is a control character.
pub fn row_key(row: &str, buffer: &mut String) -> u64 {
    if row.contains(is_unseen) {
        return row_key(&row.replace(is_unseen, ""), buffer);
    }
    buffer.clear();
    if row.is_ascii() {
        push_words(row, buffer);
        buffer.make_ascii_lowercase();
        return xxh3_64(buffer.as_bytes());
    }
    let text: String =
        if is_composed(row) { row.chars().flat_map(folded).collect() } else { row.nfc().flat_map(folded).collect() };
    let text = if is_composed(&text) { text } else { text.nfc().collect() };
    push_words(&text, buffer);
    xxh3_64(buffer.as_bytes())
}

/// Returns a text without characters that nobody sees, with a space for each run of white space, and none at both ends.
pub fn collapsed(text: &str) -> String {
    let mut buffer = String::new();
    push_words(&text.replace(is_unseen, ""), &mut buffer);
    buffer
}

fn is_composed(text: &str) -> bool {
    is_nfc_quick(text.chars()) == IsNormalized::Yes
}

/// Returns the keys of rows.
pub fn row_keys<'a>(rows: impl Iterator<Item = &'a str>) -> Vec<u64> {
    let mut buffer = String::new();
    rows.map(|row| row_key(row, &mut buffer)).collect()
}

/// Appends the words of `text` to `buffer`, with a space between them.
fn push_words(text: &str, buffer: &mut String) {
    for word in text.split(is_space).filter(|word| !word.is_empty()) {
        if !buffer.is_empty() {
            buffer.push(' ');
        }
        buffer.push_str(word);
    }
}

/// Returns the full case folding of a character, as Python's `str.casefold` does.
///
/// Characters whose full folding has several characters are those whose upper case has several, and two more.
fn folded(c: char) -> impl Iterator<Item = char> {
    let simple = |code: u32| {
        let code = char::from_u32(code).and_then(unicode_case_mapping::case_folded).map_or(code, NonZeroU32::get);
        char::from_u32(code).expect("cases of characters are characters")
    };
    let upper = match c {
        '\u{130}' => ['i' as u32, 0x307, 0],
        'ẞ' => ['s' as u32, 's' as u32, 0],
        _ if c.is_ascii() => [0; 3],
        _ => unicode_case_mapping::to_uppercase(c),
    };
    let codes = if upper[1] == 0 { [c as u32, 0, 0] } else { upper };
    codes.into_iter().enumerate().filter(|&(place, code)| place == 0 || code != 0).map(move |(_, code)| simple(code))
}
