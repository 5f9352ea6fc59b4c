//! Rows whose terms are the pieces of a model's WordPiece tokenizer, which runs in Python (`cse.tfidf.pieces`).
//!
//! Such a row is *annotated*: it consists of the text, the character U+001E, and one entry `start,end,piece` for each
//! piece. Entries are separated by spaces. `start` and `end` count characters of the text; `end` is exclusive. A piece
//! contains neither a space nor U+001E, so the last U+001E of the row always ends the text.
//!
//! A piece belongs to one of three classes. In UNA, a piece is replaced only by a piece of its class. Therefore, words
//! begin and end at the same places of the text as before.

use std::sync::OnceLock;

use regex_syntax::hir::{Class as Set, HirKind};

use crate::text::term_key::{PAD, Term};

/// Ends the text of an annotated row.
const MARK: u8 = 0x1e;
/// Begins a piece that continues a word.
pub const PREFIX: &[u8] = b"##";

/// Number of classes.
pub const CLASSES: usize = 3;
/// Begins a word that may have further pieces.
const INITIAL: usize = 0;
/// Is a character that the tokenizer always separates from its neighbours: an ideograph or a punctuation mark.
const SEPARATE: usize = 1;
pub const CONTINUATION: usize = 2;

/// Returns the text of an annotated row and its entries.
pub fn split(row: &str) -> (&str, &str) {
    match memchr::memrchr(MARK, row.as_bytes()) {
        Some(at) => (&row[..at], &row[at + 1..]),
        None => (row, ""),
    }
}

/// Calls `f(start, end, piece)` for each entry of an annotated row; `row[start..end]` is the part of the text from
/// which the piece was made. The buffers are reused between rows.
pub fn for_each(row: &str, offsets: &mut Vec<u32>, padded: &mut Vec<u8>, mut f: impl FnMut(usize, usize, Term)) {
    let (text, entries) = split(row);
    offsets.clear();
    let ascii = text.is_ascii();
    if !ascii {
        offsets.extend(text.char_indices().map(|(at, _)| at as u32));
    }
    let byte = |character: usize| match ascii {
        true => character.min(text.len()),
        false => offsets.get(character).map_or(text.len(), |&at| at as usize),
    };
    for entry in entries.split(' ') {
        let mut parts = entry.splitn(3, ',');
        let mut number = || parts.next()?.parse().ok();
        let (Some(start), Some(end)) = (number(), number()) else {
            continue; // a row without pieces
        };
        let Some(piece) = parts.next().filter(|piece| !piece.is_empty()) else {
            continue;
        };
        padded.clear();
        padded.extend_from_slice(piece.as_bytes());
        padded.extend_from_slice(&[0; PAD]);
        f(byte(start), byte(end), Term::new(padded, 0, piece.len()));
    }
}

/// Returns the class of a piece, from 0 to 2. Only the first sixteen bytes are examined.
pub fn class(piece: &[u8]) -> usize {
    if piece.len() > PREFIX.len() && piece.starts_with(PREFIX) {
        return CONTINUATION;
    }
    if piece.len() > 4 {
        return INITIAL;
    }
    let mut characters = std::str::from_utf8(piece).unwrap_or("").chars();
    match (characters.next(), characters.next()) {
        (Some(only), None) if is_separate(only) => SEPARATE,
        _ => INITIAL,
    }
}

/// Whether BERT's tokenizer separates this character from its neighbours, as `BertNormalizer` and `BertPreTokenizer` of
/// the library tokenizers do.
fn is_separate(c: char) -> bool {
    if c.is_ascii() {
        return c.is_ascii_punctuation();
    }
    let ideograph = matches!(
        u32::from(c),
        0x4e00..=0x9fff
            | 0x3400..=0x4dbf
            | 0x20000..=0x2a6df
            | 0x2a700..=0x2b73f
            | 0x2b740..=0x2b81f
            | 0x2b920..=0x2ceaf
            | 0xf900..=0xfaff
            | 0x2f800..=0x2fa1f
    );
    ideograph || is_punctuation(c)
}

/// Whether the library tokenizers counts a character as punctuation: it has the general category P in Unicode 8, or one
/// of two that have lost this category.
fn is_punctuation(c: char) -> bool {
    static RANGES: OnceLock<Vec<(char, char)>> = OnceLock::new();
    let ranges = RANGES.get_or_init(|| {
        let hir = regex_syntax::parse(r"[[\p{P}&&\p{Age:8.0}]\x{166D}\x{111C9}]").expect("a class of characters");
        let HirKind::Class(Set::Unicode(set)) = hir.kind() else {
            unreachable!("a class of characters");
        };
        set.ranges().iter().map(|r| (r.start(), r.end())).collect()
    });
    let after = ranges.partition_point(|&(first, _)| first <= c);
    after > 0 && c <= ranges[after - 1].1
}
