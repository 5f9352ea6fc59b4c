//! NLTK's word tokenizer (`NLTKWordTokenizer`, nltk 3.10.4) without its sentence splitter, with byte spans.
//!
//! NLTK rewrites the line some thirty times, one regular expression after another, and splits what is left at
//! white space. But for a double quote, which becomes two backticks or two apostrophes, all it ever adds is
//! spaces, and what it deletes is white space; so a pass is a set of places between two characters of the line
//! where a space is put. Each rule looks at characters a fixed way off, and at spaces only as "is there one".
//! One walk over the line therefore finds the places of all passes (`mark`), a second one cuts there (`cut`) and
//! takes clitics and contractions off each token, as they never look past the next space. A property test holds
//! this equal to the passes taken one by one.
//!
//! A character is one byte to both walks: itself if ASCII, else a code for what the rules can tell apart.
//!
//! What is NLTK's own, and kept:
//!
//! - `''` after a space or an opening bracket is an opening quote too: its token is two backticks.
//! - `'tis` is `'` and `tis`: the rule for an opening apostrophe comes before that for `'tis`, which is left
//!   with what follows another contraction (`cannot'tis`).
//! - `,,` before a digit loses only its first comma, as a match takes the character after the comma with it.
//! - Quotes and contractions are matched by two regular expression engines that disagree about `\w` (a combining
//!   mark, `½`) and `\s` (U+001C to U+001F, at which only the final split cuts).
//!
//! Both engines of NLTK's bring their own version of Unicode, and `regex-syntax`'s is a third one: a letter or
//! digit that one of them does not know yet can be taken differently next to `'`, `,`, `:` or a contraction.

use std::sync::LazyLock;

use regex_syntax::hir::{Class, HirKind};

/// Buffers kept between lines, so that no token allocates.
#[derive(Debug, Default)]
pub struct Scratch {
    marks: Vec<u8>,
    codes: Vec<u8>,
    starts: Vec<usize>,
}

/// Calls `f(start, end, token)` for each token of `text`, left to right. `text[start..end]` is what it came from;
/// `token` equals it, but for a double quote and for an opening `''`, which become "``" or "''".
pub fn treebank(text: &str, scratch: &mut Scratch, mut f: impl FnMut(usize, usize, &str)) {
    let Scratch {
        marks,
        codes,
        starts,
    } = scratch;
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
        codes.push(if c.is_ascii() {
            c as u8
        } else {
            CODES[c as usize]
        });
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
/// Of a word to the engine for quotes only: combining marks, connectors, joiners, circled letters.
const COMBINING: u8 = 0x87;
/// Of a word to the engine for contractions only: numbers that are no decimal digits.
const NUMBER: u8 = 0x88;
/// `ſ`, an `s` where case is ignored.
const LONG_S: u8 = 0x89;
/// `İ` and `ı`, an `i` to the engine for contractions where case is ignored; the other one is not asked for an `i`.
const TURKISH_I: u8 = 0x8a;

/// The code of every character. ASCII has its own places here too, never asked for.
static CODES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut codes = vec![OTHER; char::MAX as usize + 1];
    // UTS #18's \w, and Python's own, which is str.isalnum() and the underscore.
    fill(&mut codes, r"\w", COMBINING);
    fill(&mut codes, r"[\p{No}--\w]", NUMBER);
    fill(&mut codes, r"[\p{L}\p{Nl}]", LETTER);
    fill(&mut codes, r"\p{Nd}", DIGIT);
    fill(&mut codes, r"\s", SPACE);
    for (chars, code) in [
        ("«“‘„", OPENING),
        ("»”’", CLOSING),
        ("‒–—―", DASH),
        ("ſ", LONG_S),
        ("İı", TURKISH_I),
    ] {
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

// What a code can be.
/// `\w` to the engine for quotes and punctuation (`regex`).
const QUOTE_WORD: u8 = 1;
/// `\w` to the engine for contractions (`re`).
const WORD: u8 = 2;
const DECIMAL: u8 = 4;
/// `\s` to `regex`.
const BLANK: u8 = 8;
/// U+001C to U+001F: `\s` to `re`, and to the final split.
const SEPARATOR: u8 = 16;
/// May stand between the final period and the end.
const AFTER_PERIOD: u8 = 32;
/// [`mark`] has a rule for it.
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
            b'[' | b'(' | b'{' | b'<' | b'`' | b':' | b',' | b'.' | b';' | b'@' | b'#' | b'$'
            | b'%' | b'&' | b'?' | b'!' | b'*' | b'-' | OPENING | DASH => RULED,
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

/// Whether `codes` begins with `lower`, case ignored.
fn begins(codes: &[u8], lower: &[u8]) -> bool {
    codes.len() >= lower.len() && codes.iter().zip(lower).all(|(&c, &l)| folded(c) == l)
}

// What is marked before a character, or at the end.
/// A space put there by the starting quotes and the punctuation, up to `[?!]`.
const EARLY: u8 = 1;
/// A space put there by the punctuation after the rule for `' `, which must not see it.
const LATE: u8 = 2;
/// A double quote, or the first of two apostrophes, that opens.
const OPENS: u8 = 4;

/// Marks where the passes before the clitics put spaces. Left out is the second rule for the final period: where it
/// matches, the first one did, and it only adds to the spaces before the period and takes from those at the end.
fn mark(codes: &[u8], marks: &mut Vec<u8>) {
    let n = codes.len();
    marks.clear();
    marks.resize(n + 1, 0);
    let around = |marks: &mut [u8], start: usize, end: usize, mark: u8| {
        marks[start] |= mark;
        marks[end] |= mark;
    };
    let run_end =
        |start: usize, of: &dyn Fn(u8) -> bool| (start..n).find(|&i| !of(codes[i])).unwrap_or(n);
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
                // A match is two characters long, so it is every other one of the run.
                for at in (i..end).step_by(2) {
                    if at + 1 < n && !is(codes[at + 1], DECIMAL) {
                        around(marks, at, at + 1, EARLY);
                    }
                }
                // `$` matches before a final newline too.
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
        let closers = (after..n)
            .find(|&i| !is(codes[i], AFTER_PERIOD) || marks[i] & OPENS != 0)
            .unwrap_or(n);
        if codes[closers..].iter().all(|&c| is(c, BLANK)) {
            around(marks, period, after, EARLY);
            marks[closers] |= EARLY;
        }
    }
    marks[n] |= LATE; // the space NLTK puts at the end "to make things easier"
}

/// Whether a quote at `i` follows a space, an opening bracket, or what has had a space put after it by then.
fn opens_quote(codes: &[u8], i: usize) -> bool {
    i > 0
        && match codes[i - 1] {
            b' ' | b'(' | b'[' | b'{' | b'<' | b'`' | OPENING => true,
            b'"' => i == 1,
            _ => false,
        }
}

/// The rules for a run of apostrophes but for the one for `' `, which is [`cut`]'s.
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
    // The last one may be a single quote that opens. In a longer run it follows another one, which is no \w.
    let in_word = run + 1 == end && run > 0 && is(codes[run - 1], QUOTE_WORD);
    if start < end
        && !in_word
        && end < codes.len()
        && is(codes[end], QUOTE_WORD)
        && !is_clitic(&codes[end..])
    {
        marks[end] |= EARLY;
    }
}

/// `(?i)(?:re|ve|ll|m|t|s|d|n)\b`
fn is_clitic(after: &[u8]) -> bool {
    ["re", "ve", "ll", "m", "t", "s", "d", "n"]
        .iter()
        .any(|clitic| {
            begins(after, clitic.as_bytes())
                && !after.get(clitic.len()).is_some_and(|&c| is(c, QUOTE_WORD))
        })
}

/// Calls `piece(start, end, quote)` for each token; `quote` is what it became, if it is one.
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
            // Most tokens are one word; nothing but a contraction can part it.
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

/// Takes an apostrophe and clitics off the end of a token; `space` is what the rule for `' ` looks for.
fn clitics(
    codes: &[u8],
    start: usize,
    end: usize,
    space: bool,
    piece: &mut impl FnMut(usize, usize, Option<&str>),
) {
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

/// A contraction, and where it parts.
type Contraction = (&'static [u8], usize);

/// Those that are words.
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
/// Those that need a space before them, each of which sees the space put there by the ones before it.
const SPACED: [Contraction; 2] = [(b"'tis", 2), (b"'twas", 2)];

/// Parts the contractions in a token, and what is left at the separators.
fn contractions(
    codes: &[u8],
    start: usize,
    end: usize,
    piece: &mut impl FnMut(usize, usize, Option<&str>),
) {
    let word = |i: usize| (start..end).contains(&i) && is(codes[i], WORD);
    let find = |i: usize, among: &[Contraction]| {
        among.iter().position(|&(contraction, _)| {
            let after = i + contraction.len();
            begins(&codes[i..end], contraction)
                && !word(after)
                // This one asks for white space after it.
                && (contraction != b"wanna" || after == end || is(codes[after], SEPARATOR))
        })
    };
    let mut rest = start;
    // How many of `SPACED` no longer see a space before `i`.
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

fn between_separators(
    codes: &[u8],
    start: usize,
    end: usize,
    piece: &mut impl FnMut(usize, usize, Option<&str>),
) {
    let mut from = start;
    for run in codes[start..end].split(|&c| is(c, SEPARATOR)) {
        if !run.is_empty() {
            piece(from, from + run.len(), None);
        }
        from += run.len() + 1;
    }
}
