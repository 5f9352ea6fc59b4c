//! The key that tells which rows have the same text, but for letter case, white space and Unicode composition.

use std::num::NonZeroU32;

use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};
use xxhash_rust::xxh3::xxh3_64;

use crate::text::blank::is_space;

/// Returns the XXH3 hash (64 bits) of the normalised text of a row: in NFC, case folded, each run of white space
/// replaced by a space, and without white space at both ends. `buffer` is overwritten.
pub fn row_key(row: &str, buffer: &mut String) -> u64 {
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
