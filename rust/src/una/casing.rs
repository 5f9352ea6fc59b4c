//! Rules that decide which words are replaceable, and which letter case their replacements have.

/// Whether there is no letter, digit or `_` directly before or after the word `text[start..end]`. A word that is
/// joined to another, as ideographs in Chinese text are, must not be replaced, because the new word would run into its
/// neighbours.
pub(crate) fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let bytes = text.as_bytes();
    let before = if start == 0 { b' ' } else { bytes[start - 1] };
    let after = bytes.get(end).copied().unwrap_or(b' ');
    if before.is_ascii() && after.is_ascii() {
        return !(ascii_joins(before) | ascii_joins(after));
    }
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    !text[..start].chars().next_back().is_some_and(joins) && !text[end..].chars().next().is_some_and(joins)
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

/// Returns the letter case for the replacement of `word`. For "I", "I'm", "I'll" and MixedCase words, it is lower case.
fn case_of(word: &str) -> Case {
    if word.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        return Case::Lower;
    }
    if word == "I" || word.starts_with("I'") || word.starts_with("I\u{2019}") {
        return Case::Lower;
    }
    let mut cased = word.chars().filter(|&c| c.is_lowercase() || is_capital(c));
    if !cased.next().is_some_and(is_capital) {
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

/// Whether a letter is in upper case or, as a digraph or a Greek letter with a iota may be, in title case.
fn is_capital(c: char) -> bool {
    c.is_uppercase() || c.to_lowercase().ne([c])
}

/// Changes the term in `out[start..]` to the letter case of `old`, the word that it replaces. `term` holds the same
/// bytes as `out[start..]`, which are UTF-8.
///
/// A term is left unchanged if it has no letter, if a digit precedes its first letter ("8th", "1970s"), or if the
/// change would make it equal to `old` ("ß" in capitals is "SS").
pub(crate) fn take_case(term: &[u8], old: &str, out: &mut Vec<u8>, start: usize) {
    let case = case_of(old);
    if case == Case::Lower {
        return;
    }
    if term.is_ascii() {
        let new = &mut out[start..];
        match new.iter().position(u8::is_ascii_alphanumeric) {
            Some(first) if new[first].is_ascii_alphabetic() => match case {
                Case::Upper => new.make_ascii_uppercase(),
                _ => new[first].make_ascii_uppercase(),
            },
            _ => return,
        }
    } else if let Ok(text) = std::str::from_utf8(term) {
        let Some(changed) = in_case(text, case) else {
            return;
        };
        out.truncate(start);
        out.extend_from_slice(changed.as_bytes());
    }
    if &out[start..] == old.as_bytes() {
        out.truncate(start);
        out.extend_from_slice(term);
    }
}

/// Returns the term in this letter case, or `None` if it has no letter, or a digit precedes its first letter.
fn in_case(term: &str, case: Case) -> Option<String> {
    let first = term.find(char::is_alphanumeric)?;
    let mut rest = term[first..].chars();
    let letter = rest.next().filter(|c| c.is_alphabetic())?;
    Some(match case {
        Case::Upper => term.to_uppercase(),
        _ => {
            // Title case, which is not upper case for digraphs, ligatures and Georgian; 0 stands for no character.
            let title = unicode_case_mapping::to_titlecase(letter);
            let mut capital: String = title.into_iter().filter_map(char::from_u32).collect();
            capital.retain(|c| c != '\0');
            if capital.is_empty() {
                capital.push(letter);
            }
            [&term[..first], &capital, rest.as_str()].concat()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::take_case;

    #[test]
    fn replacement_takes_case_of_old_word_except_in_special_cases() {
        for (old, term, expected) in [
            ("greetings", "hello", "hello"),
            ("Greetings", "hello", "Hello"),
            ("GREETINGS", "hello", "HELLO"),
            ("Greetings", "8th", "8th"),
            ("Greetings", "1970s", "1970s"),
            ("GREETINGS", "8th", "8th"),
            ("GREETINGS", "1970s", "1970s"),
            ("GREETINGS", "covid-19", "COVID-19"),
            ("Greetings", "mp3", "Mp3"),
            ("Greetings", "3é", "3é"),
            ("GREETINGS", "3é", "3é"),
            ("Greetings", "é3", "É3"),
            ("Greetings", "٣x", "٣x"),
            ("Greetings,", "(hello)", "(Hello)"),
            ("GREETINGS,", "\"8th\"", "\"8th\""),
            ("Greetings", "«élan»", "«Élan»"),
            ("Greetings", "...", "..."),
            ("8th", "hello", "hello"),
            ("1970s", "hello", "hello"),
            ("I", "hello", "hello"),
            ("McDonald", "hello", "hello"),
            ("SS", "ß", "ß"),
            ("Greetings", "ﬁnal", "Final"),
            ("GREETINGS", "ﬁnal", "FINAL"),
            ("Greetings", "ǆemper", "ǅemper"),
            ("GREETINGS", "ǆemper", "ǄEMPER"),
            ("Greetings", "ßa", "Ssa"),
            ("Greetings", "ᾳδης", "ᾼδης"),
            ("Greetings", "გამარჯობა", "გამარჯობა"),
            ("Greetings", "été", "Été"),
            ("Greetings", "漢字", "漢字"),
            ("ǅemper", "hello", "Hello"),
            ("ᾼδης", "hello", "Hello"),
        ] {
            let mut out = format!("before {term}").into_bytes();
            take_case(term.as_bytes(), old, &mut out, 7);
            let written = String::from_utf8(out).expect("terms are UTF-8");
            assert_eq!(&written[7..], expected, "{old} replaced by {term}");
        }
    }
}
