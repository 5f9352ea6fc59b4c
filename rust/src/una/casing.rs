//! Which words can be replaced, and the letter case of their replacements.

/// Whether neither neighbour of `text[start..end]` is a word character. Otherwise the word must not be replaced: if "don't"
/// is split, replacing "do" gives "housen't".
pub(crate) fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let bytes = text.as_bytes();
    let before = if start == 0 { b' ' } else { bytes[start - 1] };
    let after = bytes.get(end).copied().unwrap_or(b' ');
    if before.is_ascii() && after.is_ascii() {
        return !(ascii_joins(before) | ascii_joins(after));
    }
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(joins)
        && !text[end..].chars().next().is_some_and(joins)
}

fn ascii_joins(b: u8) -> bool {
    b.is_ascii_alphanumeric() | (b == b'_')
}

/// Letter case of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Lower,
    Capitalised,
    Upper,
}

/// Returns the case that the replacement of `word` gets. "I" (and "I'm", "I'll") and MixedCase words give lower case.
fn case_of(word: &str) -> Case {
    if word.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        return Case::Lower;
    }
    if word == "I" || word.starts_with("I'") || word.starts_with("I\u{2019}") {
        return Case::Lower;
    }
    let mut cased = word
        .chars()
        .filter(|c| c.is_uppercase() || c.is_lowercase());
    if !cased.next().is_some_and(char::is_uppercase) {
        return Case::Lower;
    }
    let (mut upper, mut lower) = (0, 0);
    for c in cased {
        if c.is_uppercase() {
            upper += 1;
        } else {
            lower += 1;
        }
    }
    match (upper, lower) {
        (0, _) => Case::Capitalised,
        (_, 0) => Case::Upper,
        _ => Case::Lower,
    }
}

/// Changes `term`, which is UTF-8 and is the end of `out` from `start`, to the case of the word `old` that it replaces.
pub(crate) fn take_case(term: &[u8], old: &str, out: &mut Vec<u8>, start: usize) {
    let case = case_of(old);
    if case == Case::Lower {
        return;
    }
    if term.is_ascii() {
        let new = &mut out[start..];
        match case {
            Case::Upper => new.make_ascii_uppercase(),
            _ => {
                if let Some(first) = new.iter_mut().find(|b| b.is_ascii_alphabetic()) {
                    first.make_ascii_uppercase();
                }
            }
        }
    } else if let Ok(text) = std::str::from_utf8(term) {
        let upper = match case {
            Case::Upper => text.to_uppercase(),
            _ => {
                let at = text.find(char::is_alphabetic).unwrap_or(0);
                let mut rest = text[at..].chars();
                let first: String = rest
                    .next()
                    .into_iter()
                    .flat_map(char::to_uppercase)
                    .collect();
                [&text[..at], &first, rest.as_str()].concat()
            }
        };
        out.truncate(start);
        out.extend_from_slice(upper.as_bytes());
    }
    // "ß" in capitals is "SS", which would leave the word "SS" unchanged.
    if &out[start..] == old.as_bytes() {
        out.truncate(start);
        out.extend_from_slice(term);
    }
}
