//! NLTK's word tokenizer (`NLTKWordTokenizer`, nltk 3.10.4) without its sentence splitter, with byte spans.
//!
//! NLTK applies about thirty regular expressions, here called rules, to the line, one after another. It then splits the
//! result at white space. Except for quotes (`"` becomes two backticks or two apostrophes, and an opening `''` becomes
//! two backticks), the rules only insert spaces and delete white space. Each rule is therefore equivalent to a set of
//! positions at which it inserts a space. Nearly all rules decide this from a few neighbouring characters, and no rule
//! depends on the amount of white space. One pass over the line (`mark`) finds the positions for all rules that precede
//! the rules for clitics. A second pass (`cut`) splits the line at these positions, and applies the rules for clitics
//! (`'s`, `n't`) and contractions (`cannot`, `gonna`), which never look beyond the next space. A property test compares
//! the tokens with the result of NLTK's expressions.
//!
//! Both passes represent each character by one byte: the character itself if it is ASCII, and otherwise a code for a
//! class of characters that the rules treat alike.
//!
//! Peculiarities of NLTK that are reproduced:
//!
//! - `''` after a space or an opening bracket is an opening quote too: its token is two backticks.
//! - `'tis` becomes `'` and `tis`: the rule for an opening apostrophe precedes the rule for `'tis`, which therefore
//!   applies only after another contraction (`cannot'tis`).
//! - In `,,` before a digit, only the first comma is separated, because a match includes the character after the comma.
//! - NLTK matches quotes and punctuation with the Python package `regex`, and contractions with `re`. The two engines
//!   differ in `\w` (combining marks, `½`) and in `\s` (U+001C to U+001F are white space for `re` and for the final
//!   split, but not for `regex`).
//!
//! The two engines, and the crate `regex-syntax` that is used here, can have three different versions of Unicode. If
//! one of these versions does not contain a certain letter or digit, this module and NLTK can tokenize it differently
//! next to `'`, `,`, `:` or a contraction.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// Buffers that are reused between lines, so that no memory is allocated per token.
#[derive(Debug, Default)]
pub struct Scratch {
    marks: Vec<u8>,
    codes: Vec<u8>,
    starts: Vec<usize>,
}

/// Calls `f(start, end, token)` for each token of `text`, left to right. `token` equals `text[start..end]`, except that
/// a double quote becomes "``" or "''", and an opening `''` becomes "``".
pub fn treebank(text: &str, scratch: &mut Scratch, mut f: impl FnMut(usize, usize, &str)) {
    let Scratch { marks, codes, starts } = scratch;
    if text.is_ascii() {
        mark(text.as_bytes(), marks);
        cut(text.as_bytes(), marks, &mut |start, end, quote| {
            f(start, end, quote.unwrap_or(&text[start..end]));
        });
        return;
    }
    codes.clear();
    starts.clear();
    for (start, c) in text.char_indices() {
        codes.push(if c.is_ascii() { c as u8 } else { CODES[c as usize] });
        starts.push(start);
    }
    starts.push(text.len());
    mark(codes, marks);
    cut(codes, marks, &mut |start, end, quote| {
        let (start, end) = (starts[start], starts[end]);
        f(start, end, quote.unwrap_or(&text[start..end]));
    });
}

// Codes of the characters beyond ASCII.
const OTHER: u8 = 0x80;
/// `«“‘„`
const OPENING: u8 = 0x81;
/// `»”’`
const CLOSING: u8 = 0x82;
/// U+2012 to U+2015.
const DASH: u8 = 0x83;
const SPACE: u8 = 0x84;
const LETTER: u8 = 0x85;
const DIGIT: u8 = 0x86;
/// Matches `\w` only in the engine for quotes: combining marks, connectors, joiners, circled letters.
const COMBINING: u8 = 0x87;
/// Matches `\w` only in the engine for contractions: numbers that are not decimal digits.
const NUMBER: u8 = 0x88;
/// `ſ`, which matches `s` if case is ignored.
const LONG_S: u8 = 0x89;
/// `İ` and `ı`, which match `i` in the engine for contractions if case is ignored; no rule for quotes contains an `i`.
const TURKISH_I: u8 = 0x8a;

/// The code of every character. The entries of ASCII characters are not used.
static CODES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut codes = vec![OTHER; char::MAX as usize + 1];
    // Later calls overwrite the entries of earlier ones. Here, `\w` is defined by UTS #18, as in the engine for quotes.
    // In the engine for contractions, it matches the underscore and characters for which str.isalnum() is true.
    fill(&mut codes, r"\w", COMBINING);
    fill(&mut codes, r"[\p{No}--\w]", NUMBER);
    fill(&mut codes, r"[\p{L}\p{Nl}]", LETTER);
    fill(&mut codes, r"\p{Nd}", DIGIT);
    fill(&mut codes, r"\s", SPACE);
    for (chars, code) in [("«“‘„", OPENING), ("»”’", CLOSING), ("‒–—―", DASH), ("ſ", LONG_S), ("İı", TURKISH_I)]
    {
        for c in chars.chars() {
            codes[c as usize] = code;
        }
    }
    codes
});

fn fill(codes: &mut [u8], class: &str, code: u8) {
    let hir = regex_syntax::parse(class).expect("a class of characters");
    let HirKind::Class(Class::Unicode(class)) = hir.kind() else {
        unreachable!("a class of characters");
    };
    for range in class.ranges() {
        codes[range.start() as usize..=range.end() as usize].fill(code);
    }
}

// Properties of a code.
/// Matches `\w` in the engine for quotes and punctuation (`regex`).
const QUOTE_WORD: u8 = 1;
/// Matches `\w` in the engine for contractions (`re`).
const WORD: u8 = 2;
const DECIMAL: u8 = 4;
/// Matches `\s` in `regex`.
const BLANK: u8 = 8;
/// U+001C to U+001F: white space for `re` and for the final split, but not for `regex`.
const SEPARATOR: u8 = 16;
/// May occur between the final period and the end of the line.
const AFTER_PERIOD: u8 = 32;
/// [`mark`] has a rule for the character.
const RULED: u8 = 64;

const KIND: [u8; 256] = {
    let mut kind = [0; 256];
    let mut code = 0;
    while code < 256 {
        kind[code] = match code as u8 {
            b'0'..=b'9' | DIGIT => QUOTE_WORD | WORD | DECIMAL,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | LETTER | LONG_S | TURKISH_I => QUOTE_WORD | WORD,
            COMBINING => QUOTE_WORD,
            NUMBER => WORD,
            b' ' => BLANK | AFTER_PERIOD,
            b'\t'..=b'\r' | SPACE => BLANK,
            0x1c..=0x1f => SEPARATOR,
            b']' | b')' | b'}' | b'>' | b'"' | b'\'' | CLOSING => AFTER_PERIOD | RULED,
            b'[' | b'(' | b'{' | b'<' | b'`' | b':' | b',' | b'.' | b';' | b'@' | b'#' | b'$' | b'%' | b'&' | b'?'
            | b'!' | b'*' | b'-' | OPENING | DASH => RULED,
            _ => 0,
        };
        code += 1;
    }
    kind
};

#[inline]
fn is(code: u8, kind: u8) -> bool {
    KIND[code as usize] & kind != 0
}

fn folded(code: u8) -> u8 {
    match code {
        LONG_S => b's',
        TURKISH_I => b'i',
        _ => code.to_ascii_lowercase(),
    }
}

/// Whether `codes` begins with `lower`, ignoring case.
fn begins(codes: &[u8], lower: &[u8]) -> bool {
    codes.len() >= lower.len() && codes.iter().zip(lower).all(|(&c, &l)| folded(c) == l)
}

// Flags of a position. Position i is before character i; the last position is the end of the line.
/// A space inserted by a rule that precedes the rule for `' ` (an apostrophe and a space): the rules for opening
/// quotes, and those for punctuation up to `[?!]`.
const EARLY: u8 = 1;
/// A space inserted by a rule that follows the rule for `' `, which must therefore ignore this space.
const LATE: u8 = 2;
/// An opening double quote, or the first of two apostrophes that form an opening quote.
const OPENS: u8 = 4;

/// Marks the positions at which a rule that precedes the rules for clitics inserts a space. The second rule for the
/// final period is left out: it matches only where the first one did, and changes only the amount of white space.
fn mark(codes: &[u8], marks: &mut Vec<u8>) {
    let n = codes.len();
    marks.clear();
    marks.resize(n + 1, 0);
    let around = |marks: &mut [u8], start: usize, end: usize, mark: u8| {
        marks[start] |= mark;
        marks[end] |= mark;
    };
    let run_end = |start: usize, of: &dyn Fn(u8) -> bool| (start..n).find(|&i| !of(codes[i])).unwrap_or(n);
    let mut last_period = None;
    let mut i = 0;
    while i < n {
        let code = codes[i];
        if !is(code, RULED) {
            i += 1;
            continue;
        }
        let mut end = i + 1;
        match code {
            b'`' => {
                end = run_end(i, &|c| c == b'`');
                around(marks, i, end, EARLY);
                for pair in (i..end).step_by(2) {
                    marks[pair] |= EARLY;
                }
            }
            b'"' if i == 0 || opens_quote(codes, i) => {
                around(marks, i, end, EARLY);
                marks[i] |= OPENS;
            }
            b'"' => around(marks, i, end, LATE),
            b'\'' => {
                end = run_end(i, &|c| c == b'\'');
                apostrophes(codes, marks, i, end);
            }
            b':' | b',' => {
                end = run_end(i, &|c| matches!(c, b':' | b','));
                // A match has two characters, so only every other character of the run can start a match.
                for at in (i..end).step_by(2) {
                    if at + 1 < n && !is(codes[at + 1], DECIMAL) {
                        around(marks, at, at + 1, EARLY);
                    }
                }
                // `$` also matches before a final newline.
                if end == n || end + 1 == n && codes[end] == b'\n' {
                    around(marks, end - 1, end, EARLY);
                }
            }
            b'.' => {
                end = run_end(i, &|c| c == b'.');
                if end - i >= 2 {
                    around(marks, i, end, EARLY);
                }
                last_period = (i > 0 && end - i == 1).then_some(i);
            }
            b'-' => {
                end = run_end(i, &|c| c == b'-');
                for pair in (i..end - 1).step_by(2) {
                    around(marks, pair, pair + 2, LATE);
                }
            }
            b'*' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | CLOSING => {
                around(marks, i, end, LATE);
            }
            _ => around(marks, i, end, EARLY), // OPENING, DASH and ;@#$%&?!
        }
        i = end;
    }
    if let Some(period) = last_period {
        let after = period + 1;
        let closers = (after..n).find(|&i| !is(codes[i], AFTER_PERIOD) || marks[i] & OPENS != 0).unwrap_or(n);
        if codes[closers..].iter().all(|&c| is(c, BLANK)) {
            around(marks, period, after, EARLY);
            marks[closers] |= EARLY;
        }
    }
    marks[n] |= LATE; // NLTK appends a space to the line
}

/// Whether a quote at `i` follows a space, an opening bracket, or a character after which an earlier rule inserted a
/// space.
fn opens_quote(codes: &[u8], i: usize) -> bool {
    i > 0
        && match codes[i - 1] {
            b' ' | b'(' | b'[' | b'{' | b'<' | b'`' | OPENING => true,
            b'"' => i == 1,
            _ => false,
        }
}

/// Applies the rules for a run of apostrophes, except the rule for `' `, which [`clitics`] applies.
fn apostrophes(codes: &[u8], marks: &mut [u8], run: usize, end: usize) {
    let mut start = run;
    if end - run >= 2 && opens_quote(codes, run) {
        marks[run] |= EARLY | OPENS;
        start += 2;
        marks[start] |= EARLY;
    }
    for pair in (start..end - 1).step_by(2) {
        marks[pair] |= LATE;
        marks[pair + 2] |= LATE;
    }
    // The last apostrophe of the run may be an opening single quote, unless the character before it is \w. In a run of
    // two or more, that character is an apostrophe, which is not \w.
    let in_word = run + 1 == end && run > 0 && is(codes[run - 1], QUOTE_WORD);
    if start < end && !in_word && end < codes.len() && is(codes[end], QUOTE_WORD) && !is_clitic(&codes[end..]) {
        marks[end] |= EARLY;
    }
}

/// `(?i)(?:re|ve|ll|m|t|s|d|n)\b`
fn is_clitic(after: &[u8]) -> bool {
    ["re", "ve", "ll", "m", "t", "s", "d", "n"]
        .iter()
        .any(|clitic| begins(after, clitic.as_bytes()) && !after.get(clitic.len()).is_some_and(|&c| is(c, QUOTE_WORD)))
}

/// Calls `piece(start, end, quote)` for each token; if the token is a quote, `quote` is the text that replaces it.
fn cut(codes: &[u8], marks: &[u8], piece: &mut impl FnMut(usize, usize, Option<&str>)) {
    let n = codes.len();
    let mut i = 0;
    while i < n {
        let start = i;
        let mut all = KIND[codes[i] as usize];
        i += 1;
        if all & BLANK != 0 {
            continue;
        }
        while marks[i] == 0 {
            let kind = KIND[codes[i] as usize];
            if kind & BLANK != 0 {
                break;
            }
            all &= kind;
            i += 1;
        }
        if all & WORD != 0 {
            // Most tokens consist of characters that are \w. Only the contractions of five or six letters can divide
            // them.
            match i - start {
                5..=6 => contractions(codes, start, i, piece),
                _ => piece(start, i, None),
            }
        } else if marks[start] & OPENS != 0 {
            piece(start, i, Some("``"));
        } else if codes[start] == b'"' {
            piece(start, i, Some("''"));
        } else {
            let space = marks[i] & EARLY != 0 || i < n && codes[i] == b' ';
            clitics(codes, start, i, space, piece);
        }
    }
}

/// Separates a final apostrophe and clitics from a token, and divides the contractions in the rest of it. `space` is
/// true if the rule for `' ` finds a space after the token.
fn clitics(codes: &[u8], start: usize, end: usize, space: bool, piece: &mut impl FnMut(usize, usize, Option<&str>)) {
    let mut quote = end;
    if space && matches!(codes[start..end], [.., before, b'\''] if before != b'\'') {
        quote -= 1;
    }
    let short = quote
        - match codes[start..quote] {
            [.., b'\'', b'\''] => 0,
            [_, .., b'\''] => 1,
            [.., b'\'', b'\'', _] => 0,
            [_, .., b'\'', b's' | b'S' | b'm' | b'M' | b'd' | b'D'] => 2,
            _ => 0,
        };
    let long = short
        - match &codes[start..short] {
            [.., b'\'', _, _, _] => 0,
            [_, .., b'\'', b'l', b'l'] | [_, .., b'\'', b'L', b'L'] => 3,
            [_, .., b'\'', b'r' | b'v', b'e'] | [_, .., b'\'', b'R' | b'V', b'E'] => 3,
            [_, .., b'n', b'\'', b't'] | [_, .., b'N', b'\'', b'T'] => 3,
            _ => 0,
        };
    contractions(codes, start, long, piece);
    for (start, end) in [(long, short), (short, quote), (quote, end)] {
        if start < end {
            piece(start, end, None);
        }
    }
}

/// A contraction, and the position at which it is divided.
type Contraction = (&'static [u8], usize);

/// Contractions that begin with a letter; no `\w` may precede or follow them.
const WORDS: [Contraction; 8] = [
    (b"cannot", 3),
    (b"d'ye", 1),
    (b"gimme", 3),
    (b"gonna", 3),
    (b"gotta", 3),
    (b"lemme", 3),
    (b"more'n", 4),
    (b"wanna", 3),
];
/// Contractions that must follow a space, which the rule for an earlier contraction may have inserted.
const SPACED: [Contraction; 2] = [(b"'tis", 2), (b"'twas", 2)];

/// Divides the contractions in a token, and splits the rest at separators (see [`SEPARATOR`]).
fn contractions(codes: &[u8], start: usize, end: usize, piece: &mut impl FnMut(usize, usize, Option<&str>)) {
    let word = |i: usize| (start..end).contains(&i) && is(codes[i], WORD);
    let find = |i: usize, among: &[Contraction]| {
        among.iter().position(|&(contraction, _)| {
            let after = i + contraction.len();
            begins(&codes[i..end], contraction)
                && !word(after)
                // "wanna" must be followed by white space.
                && (contraction != b"wanna" || after == end || is(codes[after], SEPARATOR))
        })
    };
    let mut rest = start;
    // Number of leading elements of `SPACED` that cannot match at `i`, because NLTK applies their rules before it
    // inserts a space at `i`.
    let mut blind = 0;
    let mut i = start;
    while i < end {
        let found = if word(i) && (i == start || !word(i - 1)) {
            find(i, &WORDS).map(|k| (WORDS[k], 0))
        } else if codes[i] == b'\'' {
            find(i, &SPACED[blind..]).map(|k| (SPACED[blind + k], blind + k + 1))
        } else {
            None
        };
        let Some(((contraction, part), then)) = found else {
            blind = SPACED.len();
            i += 1;
            continue;
        };
        let (middle, after) = (i + part, i + contraction.len());
        between_separators(codes, rest, i, piece);
        piece(i, middle, None);
        piece(middle, after, None);
        blind = then;
        i = after;
        rest = after;
    }
    between_separators(codes, rest, end, piece);
}

fn between_separators(codes: &[u8], start: usize, end: usize, piece: &mut impl FnMut(usize, usize, Option<&str>)) {
    let mut from = start;
    for run in codes[start..end].split(|&c| is(c, SEPARATOR)) {
        if !run.is_empty() {
            piece(from, from + run.len(), None);
        }
        from += run.len() + 1;
    }
}
