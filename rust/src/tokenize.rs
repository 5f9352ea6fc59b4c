//! Text to terms with byte spans. The only place where word rules live.
//!
//! - `unicode`: words by UAX #29 (a segment with at least one alphanumeric character), found within each
//!   stretch between ASCII spaces, lower-cased one by one; punctuation is no term.
//! - `whitespace`: Python's `str.split()`, lower-cased; punctuation stays in the term.
//!
//! Most text is ASCII, so both have a fast path that walks bytes by class and falls back to the rule's plain
//! wording at the first non-ASCII byte; a property test holds the two equal.

use unicode_segmentation::UnicodeSegmentation;

use crate::corpus::is_space;
use crate::error::{Error, Result};
use crate::table::{PAD, Term};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokenizer {
    Unicode,
    Whitespace,
}

impl Tokenizer {
    pub const NAMES: [&'static str; 2] = ["unicode", "whitespace"];

    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "unicode" => Ok(Tokenizer::Unicode),
            "whitespace" => Ok(Tokenizer::Whitespace),
            _ => Err(Error::invalid(
                "--tokenizer",
                format!(
                    "{name:?} is unknown; choose one of {}",
                    Self::NAMES.join(", ")
                ),
            )),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Tokenizer::Unicode => "unicode",
            Tokenizer::Whitespace => "whitespace",
        }
    }

    /// Calls `f(start, end, term)` for each term of `row`, left to right; `row[start..end]` is its surface.
    pub fn for_each(self, row: &str, scratch: &mut Scratch, mut f: impl FnMut(usize, usize, Term)) {
        let Scratch { lower, slow } = scratch;
        lower.clear();
        lower.extend_from_slice(row.as_bytes());
        lower.make_ascii_lowercase();
        lower.extend_from_slice(&[0; PAD]);
        match self {
            Tokenizer::Unicode => unicode(row, lower, slow, &mut f),
            Tokenizer::Whitespace => whitespace(row, lower, slow, &mut f),
        }
    }

    /// The same terms by the plain wording of the rules: what the fast path is tested against.
    pub fn for_each_slow(
        self,
        row: &str,
        scratch: &mut Scratch,
        mut f: impl FnMut(usize, usize, Term),
    ) {
        match self {
            Tokenizer::Unicode => {
                let mut start = 0;
                for piece in row.split(' ') {
                    unicode_slow(row, start, start + piece.len(), &mut scratch.slow, &mut f);
                    start += piece.len() + 1;
                }
            }
            Tokenizer::Whitespace => {
                whitespace_slow(row, 0, row.len(), &mut scratch.slow, &mut f);
            }
        }
    }
}

/// Buffers kept between rows, so that no token allocates.
#[derive(Debug, Default)]
pub struct Scratch {
    lower: Vec<u8>,
    pub(crate) slow: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Letter,
    Digit,
    /// `_` joins like a letter but is no word by itself (ExtendNumLet).
    Underscore,
    /// Between two letters: `:`.
    MidLetter,
    /// Between two digits: `,` and `;`.
    MidNum,
    /// Between two letters or two digits: `.` and `'`.
    MidBoth,
    Space,
    NonAscii,
}

const CLASS: [Class; 256] = {
    let mut table = [Class::Other; 256];
    let mut b = 0;
    while b < 256 {
        table[b] = match b as u8 {
            b'a'..=b'z' | b'A'..=b'Z' => Class::Letter,
            b'0'..=b'9' => Class::Digit,
            b'_' => Class::Underscore,
            b':' => Class::MidLetter,
            b',' | b';' => Class::MidNum,
            b'.' | b'\'' => Class::MidBoth,
            b' ' => Class::Space,
            0x80..=0xff => Class::NonAscii,
            _ => Class::Other,
        };
        b += 1;
    }
    table
};

impl Class {
    fn in_word(self) -> bool {
        matches!(self, Class::Letter | Class::Digit | Class::Underscore)
    }

    fn is_mid(self) -> bool {
        matches!(self, Class::MidLetter | Class::MidNum | Class::MidBoth)
    }

    /// Whether this punctuation keeps a word together between `before` and `after` (rules WB6, 7, 11, 12).
    fn joins(self, before: Class, after: Class) -> bool {
        match (before, after) {
            (Class::Letter, Class::Letter) => matches!(self, Class::MidLetter | Class::MidBoth),
            (Class::Digit, Class::Digit) => matches!(self, Class::MidNum | Class::MidBoth),
            _ => false,
        }
    }
}

fn unicode(row: &str, lower: &[u8], slow: &mut Vec<u8>, f: &mut impl FnMut(usize, usize, Term)) {
    let class = |i: usize| CLASS[lower[i] as usize]; // the padding reads as Class::Other
    let n = row.len();
    let mut i = 0;
    'row: while i < n {
        let first = class(i);
        if first == Class::NonAscii {
            // One character back, if it is of this piece: a combining mark belongs to what it stands on.
            let start = if i > 0 && class(i - 1) != Class::Space {
                i - 1
            } else {
                i
            };
            i = unicode_slow_to_space(row, start, slow, f);
            continue;
        }
        if !first.in_word() {
            i += 1;
            continue;
        }
        let start = i;
        loop {
            while class(i).in_word() {
                i += 1;
            }
            let here = class(i);
            if here == Class::NonAscii {
                i = unicode_slow_to_space(row, start, slow, f);
                continue 'row;
            }
            if !here.is_mid() {
                break;
            }
            let after = class(i + 1);
            if after == Class::NonAscii {
                i = unicode_slow_to_space(row, start, slow, f);
                continue 'row;
            }
            if !here.joins(class(i - 1), after) {
                break;
            }
            i += 1;
        }
        if first != Class::Underscore || lower[start..i].iter().any(u8::is_ascii_alphanumeric) {
            f(start, i, Term::new(lower, start, i));
        }
    }
}

/// `start` is a word boundary; the result is the end of its piece (an ASCII space, or the end of the row).
fn unicode_slow_to_space(
    row: &str,
    start: usize,
    slow: &mut Vec<u8>,
    f: &mut impl FnMut(usize, usize, Term),
) -> usize {
    let end = memchr::memchr(b' ', &row.as_bytes()[start..]).map_or(row.len(), |k| start + k);
    unicode_slow(row, start, end, slow, f);
    end
}

fn unicode_slow(
    row: &str,
    start: usize,
    end: usize,
    slow: &mut Vec<u8>,
    f: &mut impl FnMut(usize, usize, Term),
) {
    for (at, word) in row[start..end].unicode_word_indices() {
        f(start + at, start + at + word.len(), lower_cased(word, slow));
    }
}

pub(crate) fn lower_cased<'a>(word: &str, slow: &'a mut Vec<u8>) -> Term<'a> {
    slow.clear();
    slow.extend_from_slice(word.to_lowercase().as_bytes());
    let len = slow.len();
    slow.extend_from_slice(&[0; PAD]);
    Term::new(slow, 0, len)
}

fn is_ascii_space(b: u8) -> bool {
    matches!(b, b'\t'..=b'\r' | 0x1c..=0x1f | b' ')
}

fn whitespace(row: &str, lower: &[u8], slow: &mut Vec<u8>, f: &mut impl FnMut(usize, usize, Term)) {
    let bytes = row.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        if is_ascii_space(bytes[i]) {
            i += 1;
            continue;
        }
        let start = i;
        let mut ascii = true;
        while i < bytes.len() && !is_ascii_space(bytes[i]) {
            ascii &= bytes[i] < 0x80;
            i += 1;
        }
        if ascii {
            f(start, i, Term::new(lower, start, i));
        } else {
            whitespace_slow(row, start, i, slow, f);
        }
    }
}

fn whitespace_slow(
    row: &str,
    start: usize,
    end: usize,
    slow: &mut Vec<u8>,
    f: &mut impl FnMut(usize, usize, Term),
) {
    let mut at = start;
    for word in row[start..end].split(is_space) {
        if !word.is_empty() {
            f(at, at + word.len(), lower_cased(word, slow));
        }
        at += word.len();
        at += row[at..end].chars().next().map_or(0, char::len_utf8);
    }
}
