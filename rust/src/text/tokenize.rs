//! Splits text into terms with byte spans, according to one of four rules.
//!
//! - `unicode`: splits the row at ASCII spaces, and each piece into words according to UAX #29 (segments with at least
//!   one alphanumeric character). Punctuation is not a term.
//! - `whitespace`: splits the row like Python's `str.split()`. Punctuation is part of the term.
//! - `treebank`: applies NLTK's word tokenizer ([`crate::text::treebank`]). Punctuation is a term.
//! - `wordpieces`: reads the pieces of a model's tokenizer from the row ([`crate::text::wordpieces`]), and does not
//!   fold them. Punctuation is a term.
//!
//! A word is folded to a term by NFKC (optional) and lower case (the default). `unicode` and `whitespace` fold each
//! word after it is found. `treebank`, like the published UNA, lower-cases the row before it finds words; it
//! folds the words themselves only if NFKC is set. Spans always refer to the original row.
//!
//! Most text is ASCII. `unicode` and `whitespace` therefore have a fast path, which finds runs of word bytes. They use
//! the reference implementation only where a run contains a byte that is not ASCII, or is next to one. A property test
//! checks that the results always equal those of the reference implementation.

use unicode_normalization::UnicodeNormalization;
use unicode_segmentation::UnicodeSegmentation;

use crate::error::{Named, Result};
use crate::text::row::is_space;
use crate::text::term_key::{PAD, Term};
use crate::text::treebank::{self, treebank};
use crate::text::{CharOffsets, utf8_string, wordpieces};

/// How words are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Unicode,
    Whitespace,
    Treebank,
    Wordpieces,
}

impl Named for Rule {
    const FLAG: &'static str = "--tokenizer";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("unicode", Rule::Unicode),
        ("whitespace", Rule::Whitespace),
        ("treebank", Rule::Treebank),
        ("wordpieces", Rule::Wordpieces),
    ];
}

/// A tokenizer: how words are found and folded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokenizer {
    pub rule: Rule,
    pub lowercase: bool,
    /// Normalise compatibility characters (`ﬁ` to `fi`, full-width letters to ordinary letters).
    pub nfkc: bool,
    /// With the rule `wordpieces`, the hash of the model's tokenizer; otherwise 0.
    pub pieces: u128,
}

impl Tokenizer {
    pub const UNICODE: Tokenizer = Tokenizer::plain(Rule::Unicode);
    pub const WHITESPACE: Tokenizer = Tokenizer::plain(Rule::Whitespace);
    pub const TREEBANK: Tokenizer = Tokenizer::plain(Rule::Treebank);

    const fn plain(rule: Rule) -> Self {
        Tokenizer { rule, lowercase: true, nfkc: false, pieces: 0 }
    }

    /// Returns the tokenizer of this name; an unknown name is an error.
    pub fn new(name: &str, lowercase: bool, nfkc: bool) -> Result<Self> {
        Ok(Tokenizer { rule: Rule::from_name(name)?, lowercase, nfkc, pieces: 0 })
    }

    /// Returns a tokenizer with the pieces of the model's tokenizer that has this hash.
    pub fn of_pieces(pieces: u128) -> Self {
        Tokenizer { pieces, ..Tokenizer::plain(Rule::Wordpieces) }
    }

    /// Returns the name of the tokenizer.
    pub fn name(self) -> &'static str {
        Rule::NAMES[self.rule as usize].0
    }

    /// Returns a description for messages: the name of the tokenizer, and the options that differ from their defaults.
    pub fn describe(self) -> String {
        let case = if self.lowercase { "" } else { ", case kept" };
        let form = if self.nfkc { ", NFKC" } else { "" };
        let model = match self.rule {
            Rule::Wordpieces => format!(" of the tokenizer {:.8}", self.hex()),
            _ => String::new(),
        };
        format!("{}{model}{case}{form}", self.name())
    }

    /// Returns the hash of the model's tokenizer in hexadecimal notation.
    pub fn hex(self) -> String {
        format!("{:032x}", self.pieces)
    }

    /// Returns the text of a row: without the pieces, if the row is annotated with them.
    pub fn text(self, row: &str) -> &str {
        match self.rule {
            Rule::Wordpieces => wordpieces::split(row).0,
            _ => row,
        }
    }

    /// Returns the class of a term, of which at most the first sixteen bytes are needed. A term is replaced only by a
    /// term of its class; all words are in class 0.
    pub fn class(self, term: &[u8]) -> usize {
        match self.rule {
            Rule::Wordpieces => wordpieces::class(term),
            _ => 0,
        }
    }

    /// Calls `f(start, end, term)` for each term of `row`, left to right; `row[start..end]` is the word as written.
    pub fn for_each(self, row: &str, scratch: &mut Scratch, mut f: impl FnMut(usize, usize, Term)) {
        let Scratch { lower, edges, slow, treebank } = scratch;
        if self.rule == Rule::Treebank {
            return self.treebank(row, treebank, slow, &mut f);
        }
        if self.rule == Rule::Wordpieces {
            return wordpieces::for_each(row, edges, slow, f);
        }
        lower.clear();
        lower.extend_from_slice(row.as_bytes());
        if self.lowercase {
            lower.make_ascii_lowercase();
        }
        lower.extend_from_slice(&[0; PAD]);
        match self.rule {
            Rule::Unicode => self.unicode(row, lower, edges, slow, &mut f),
            _ => self.whitespace(row, lower, edges, slow, &mut f),
        }
    }

    /// Does the same as [`for_each`](Self::for_each) with the reference implementation, against which the fast paths
    /// are tested.
    pub fn for_each_slow(self, row: &str, scratch: &mut Scratch, mut f: impl FnMut(usize, usize, Term)) {
        let slow = &mut scratch.slow;
        match self.rule {
            Rule::Unicode => {
                let mut start = 0;
                for piece in row.split(' ') {
                    self.unicode_slow(row, start, start + piece.len(), slow, &mut f);
                    start += piece.len() + 1;
                }
            }
            Rule::Whitespace => self.whitespace_slow(row, 0, row.len(), slow, &mut f),
            Rule::Treebank => self.treebank(row, &mut scratch.treebank, slow, &mut f),
            Rule::Wordpieces => wordpieces::for_each(row, &mut scratch.edges, slow, f),
        }
    }

    /// Folds a word to a term: applies NFKC and lower case, according to the options.
    fn fold<'a>(self, word: &str, slow: &'a mut Vec<u8>) -> Term<'a> {
        slow.clear();
        match (self.nfkc, self.lowercase) {
            (false, true) => slow.extend_from_slice(word.to_lowercase().as_bytes()),
            (false, false) => slow.extend_from_slice(word.as_bytes()),
            (true, lowercase) => {
                let word: String = word.nfkc().collect();
                let word = if lowercase { word.to_lowercase() } else { word };
                slow.extend_from_slice(word.as_bytes());
            }
        }
        padded(slow)
    }
}

/// Returns (start, end, term) for each term of a text. The positions count characters, and `end` is exclusive.
pub fn terms(text: &str, tokenizer: Tokenizer) -> Vec<(usize, usize, String)> {
    let (mut offsets, mut terms) = (CharOffsets::new(text), Vec::new());
    tokenizer.for_each(text, &mut Scratch::default(), |start, end, term| {
        let term = utf8_string(term.bytes().to_vec());
        terms.push((offsets.at(start), offsets.at(end), term));
    });
    terms
}

/// Buffers that are reused between rows, so that no memory is allocated per token.
#[derive(Debug, Default)]
pub struct Scratch {
    lower: Vec<u8>,
    edges: Vec<u32>,
    slow: Vec<u8>,
    treebank: TreebankScratch,
}

#[derive(Debug, Default)]
struct TreebankScratch {
    lower: String,
    /// For each byte of `lower`, the start in the row of the character from which it was made; empty if lower-casing
    /// changes no positions.
    origin: Vec<usize>,
    buffers: treebank::Scratch,
}

/// Appends padding to a buffer and returns its previous content as a term.
fn padded(buffer: &mut Vec<u8>) -> Term<'_> {
    let len = buffer.len();
    buffer.extend_from_slice(&[0; PAD]);
    Term::new(buffer, 0, len)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Letter,
    Digit,
    /// `_` joins like a letter, but is not a word by itself (ExtendNumLet).
    Underscore,
    /// `:` is part of a word if it is between two letters.
    MidLetter,
    /// `,` and `;` are part of a word if they are between two digits.
    MidNum,
    /// `.` and `'` are part of a word if they are between two letters or two digits.
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
    fn is_mid(self) -> bool {
        matches!(self, Class::MidLetter | Class::MidNum | Class::MidBoth)
    }

    /// Whether this punctuation mark is part of a word if it is between `before` and `after` (rules WB6, WB7, WB11 and
    /// WB12 of UAX #29).
    fn joins(self, before: Class, after: Class) -> bool {
        match (before, after) {
            (Class::Letter, Class::Letter) => matches!(self, Class::MidLetter | Class::MidBoth),
            (Class::Digit, Class::Digit) => matches!(self, Class::MidNum | Class::MidBoth),
            _ => false,
        }
    }
}

fn is_ascii_space(b: u8) -> bool {
    (b.wrapping_sub(b'\t') < 5) | (b.wrapping_sub(0x1c) < 5) // \t to \r, and 0x1c to the space
}

/// Fills `edges` with the start and end of each run of bytes for which `inside` is true.
///
/// Blocks of 64 bytes are converted to 64 bits without a branch, and only the positions at which the bits change are
/// visited. In a loop over bytes, the processor would mispredict the end of every word.
fn find_edges(bytes: &[u8], edges: &mut Vec<u32>, inside: impl Fn(u8) -> bool) {
    edges.clear();
    let (blocks, rest) = bytes.as_chunks::<64>();
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    let mut before = 0;
    for (nth, block) in blocks.iter().chain([&last]).enumerate() {
        let mut flags = [0; 64];
        for (flag, &byte) in flags.iter_mut().zip(block) {
            *flag = u8::from(inside(byte));
        }
        let mut bits = 0u64;
        for (eighth, flags) in flags.as_chunks::<8>().0.iter().enumerate() {
            // Converts eight bytes of 0 or 1 to eight bits: the product moves byte k to bit 56 + k.
            let gathered = u64::from_le_bytes(*flags).wrapping_mul(0x0102_0408_1020_4080) >> 56;
            bits |= gathered << (8 * eighth);
        }
        if nth == blocks.len() {
            bits &= (1 << rest.len()) - 1;
        }
        let mut changes = bits ^ (bits << 1 | before);
        before = bits >> 63;
        while changes != 0 {
            edges.push((64 * nth) as u32 + changes.trailing_zeros());
            changes &= changes - 1;
        }
    }
    if edges.len() % 2 == 1 {
        edges.push(bytes.len() as u32);
    }
}

impl Tokenizer {
    fn unicode(
        self,
        row: &str,
        lower: &[u8],
        edges: &mut Vec<u32>,
        slow: &mut Vec<u8>,
        f: &mut impl FnMut(usize, usize, Term),
    ) {
        let ascii = row.is_ascii();
        let class = |i: usize| CLASS[lower[i] as usize]; // the padding reads as Class::Other
        find_edges(&lower[..row.len()], edges, |b| {
            // Not written with `is_ascii_alphanumeric`, whose branches would prevent vectorisation.
            ((b | 0x20).wrapping_sub(b'a') < 26) | (b.wrapping_sub(b'0') < 10) | (b == b'_') | (b >= 0x80)
        });
        let mut runs = edges.as_chunks::<2>().0.iter();
        let mut next = runs.next();
        'row: while let Some(&[start, end]) = next {
            let (start, mut end) = (start as usize, end as usize);
            next = runs.next();
            loop {
                // Use the reference implementation if the rules for ASCII do not decide where this word ends.
                let (here, after) = (class(end), class(end + 1));
                let slow_from = if !ascii && !row.as_bytes()[start..end].is_ascii() {
                    // A run that begins with a character that is not ASCII may begin with a combining mark, which
                    // belongs to the character before it. Start at that character unless it is a space.
                    let alone = start == 0 || class(start - 1) == Class::Space;
                    let begins = class(start) == Class::NonAscii && !alone;
                    Some(start - usize::from(begins))
                } else {
                    (here.is_mid() && after == Class::NonAscii).then_some(start)
                };
                if let Some(from) = slow_from {
                    let to = self.unicode_slow_to_space(row, from, slow, f);
                    while next.is_some_and(|run| (run[0] as usize) < to) {
                        next = runs.next();
                    }
                    continue 'row;
                }
                match next {
                    Some(run) if here.is_mid() && here.joins(class(end - 1), after) => {
                        end = run[1] as usize;
                        next = runs.next();
                    }
                    _ => break,
                }
            }
            let underscores =
                class(start) == Class::Underscore && !lower[start..end].iter().any(u8::is_ascii_alphanumeric);
            if !underscores {
                f(start, end, Term::new(lower, start, end));
            }
        }
    }

    /// Applies the reference implementation to the text from the word boundary `start` to the next ASCII space, or to
    /// the end of the row. Returns the position of this space or end.
    fn unicode_slow_to_space(
        self,
        row: &str,
        start: usize,
        slow: &mut Vec<u8>,
        f: &mut impl FnMut(usize, usize, Term),
    ) -> usize {
        let end = memchr::memchr(b' ', &row.as_bytes()[start..]).map_or(row.len(), |k| start + k);
        self.unicode_slow(row, start, end, slow, f);
        end
    }

    fn unicode_slow(
        self,
        row: &str,
        start: usize,
        end: usize,
        slow: &mut Vec<u8>,
        f: &mut impl FnMut(usize, usize, Term),
    ) {
        for (at, word) in row[start..end].unicode_word_indices() {
            f(start + at, start + at + word.len(), self.fold(word, slow));
        }
    }

    fn whitespace(
        self,
        row: &str,
        lower: &[u8],
        edges: &mut Vec<u32>,
        slow: &mut Vec<u8>,
        f: &mut impl FnMut(usize, usize, Term),
    ) {
        let ascii = row.is_ascii();
        find_edges(&lower[..row.len()], edges, |b| !is_ascii_space(b));
        for &[start, end] in edges.as_chunks::<2>().0 {
            let (start, end) = (start as usize, end as usize);
            if ascii || row.as_bytes()[start..end].is_ascii() {
                f(start, end, Term::new(lower, start, end));
            } else {
                self.whitespace_slow(row, start, end, slow, f);
            }
        }
    }

    fn whitespace_slow(
        self,
        row: &str,
        start: usize,
        end: usize,
        slow: &mut Vec<u8>,
        f: &mut impl FnMut(usize, usize, Term),
    ) {
        let mut at = start;
        for word in row[start..end].split(is_space) {
            if !word.is_empty() {
                f(at, at + word.len(), self.fold(word, slow));
            }
            at += word.len();
            at += row[at..end].chars().next().map_or(0, char::len_utf8);
        }
    }

    fn treebank(
        self,
        row: &str,
        scratch: &mut TreebankScratch,
        slow: &mut Vec<u8>,
        f: &mut impl FnMut(usize, usize, Term),
    ) {
        let TreebankScratch { lower, origin, buffers } = scratch;
        let text = if self.lowercase {
            lower_with_origin(row, lower, origin);
            lower.as_str()
        } else {
            origin.clear();
            row
        };
        treebank(text, buffers, |start, end, token| {
            let at = |i: usize| if origin.is_empty() { i } else { origin[i] };
            let term = if self.nfkc && !token.is_ascii() {
                self.fold(token, slow)
            } else {
                slow.clear();
                slow.extend_from_slice(token.as_bytes());
                padded(slow)
            };
            f(at(start), at(end), term);
        });
    }
}

/// Converts `row` to lower case like Python's `str.lower()`. For each byte of `lower`, records in `origin` the start in
/// `row` of the character from which the byte was made. If `row` is ASCII, positions do not change and `origin` is
/// empty.
fn lower_with_origin(row: &str, lower: &mut String, origin: &mut Vec<usize>) {
    lower.clear();
    origin.clear();
    if row.is_ascii() {
        lower.push_str(row);
        lower.make_ascii_lowercase();
        return;
    }
    lower.push_str(&row.to_lowercase());
    for (at, c) in row.char_indices() {
        // Only sigma depends on its neighbours (it has a final form), and both of its forms have two bytes.
        let len: usize = c.to_lowercase().map(char::len_utf8).sum();
        origin.extend(std::iter::repeat_n(at, len));
    }
    origin.push(row.len());
}
