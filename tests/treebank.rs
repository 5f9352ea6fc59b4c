//! Tests that, for any text, the `treebank` tokenizer returns the same tokens as NLTK's sequence of regular
//! expressions.

use std::sync::LazyLock;

use cse_core::text::row::is_space;
use cse_core::text::treebank::{Scratch, treebank};
use fancy_regex::Regex;
use proptest::prelude::*;

type Tokens = Vec<(usize, usize, String)>;

fn tokens(text: &str) -> Tokens {
    let mut found = Vec::new();
    treebank(text, &mut Scratch::default(), |start, end, token| {
        found.push((start, end, token.to_owned()));
    });
    found
}

fn words(text: &str) -> Vec<String> {
    tokens(text).into_iter().map(|(_, _, token)| token).collect()
}

/// NLTK's expressions in NLTK's order, each with its replacement. NLTK matches contractions with Python's `re`; the
/// expressions for contractions therefore spell out which characters `\b`, `\s` and a case-insensitive `i` match in
/// `re`. In Python, `$` also matches before a final newline. It is therefore written as `(?=\n?\z)`, except after
/// `\s*`, which matches the newline itself.
static PASSES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let passes = [
        (r"([«“‘„]|[`]+)", " $1 "),
        (r#"^""#, "``"),
        (r"(``)", " $1 "),
        (r#"([ \(\[{<])("|'{2})"#, "$1 `` "),
        (r"(?i)(?<!\w)(')(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w)", "$1 "),
        (r#"([^\.])(\.)([\]\)}>"'»”’ ]*+)\s*$"#, "$1 $2 $3 "),
        (r"([:,])([^\d])", " $1 $2"),
        (r"([:,])(?=\n?\z)", " $1 "),
        (r"\.{2,}", " $0 "),
        (r"[;@#$%&]", " $0 "),
        (r"[\u{2012}-\u{2015}]", " $0 "),
        (r#"([^\.])(\.)([\]\)}>"']*)\s*$"#, "$1 $2$3 "),
        (r"[?!]", " $0 "),
        (r"([^'])' ", "$1 ' "),
        (r"[*]", " $0 "),
        (r"[\]\[\(\)\{\}\<\>]", " $0 "),
        (r"--", " -- "),
        (r"\A|\z", " "),
        (r"([»”’])", " $1 "),
        (r"''", " '' "),
        (r#"""#, " '' "),
        (r"\s+", " "),
        (r"([^' ])('[sS]|'[mM]|'[dD]|') ", "$1 $2 "),
        (r"([^' ])('ll|'LL|'re|'RE|'ve|'VE|n't|N'T) ", "$1 $2 "),
    ];
    let word = r"[\p{L}\p{N}_]";
    let contractions =
        [("can", "not"), ("d", "'ye"), ("g[iİı]m", "me"), ("gon", "na"), ("got", "ta"), ("lem", "me"), ("more", "'n")]
            .map(|(a, b)| format!("(?i)(?<!{word})({a})({b})(?!{word})"));
    let wanna = format!(r"(?i)(?<!{word})(wan)(na)(?=[\s\x1c-\x1f])");
    let spaced = ["[iİı]s", "was"].map(|b| format!("(?i) ('t)({b})(?!{word})"));
    let contractions = contractions.into_iter().chain([wanna]).chain(spaced);
    let compiled = |expression: &str| Regex::new(expression).expect("a valid expression");
    passes
        .into_iter()
        .map(|(expression, to)| (compiled(expression), to))
        .chain(contractions.map(|expression| (compiled(&expression), " $1 $2 ")))
        .collect()
});

fn pass_by_pass(text: &str) -> Vec<String> {
    let mut text = text.to_owned();
    for (expression, to) in PASSES.iter() {
        text = expression.replace_all(&text, *to).into_owned();
    }
    let tokens = text.split(is_space).filter(|token| !token.is_empty());
    tokens.map(String::from).collect()
}

/// Text with many of the characters that the rules distinguish.
fn awkward() -> impl Strategy<Value = String> {
    let any_of = |pieces: &'static [&'static str]| prop::sample::select(pieces).prop_map(str::to_owned);
    let piece = prop_oneof![
        6 => "['\"`]{1,3}",
        4 => "[ .:,()?!*;<>-]",
        2 => "[a-zA-Z0-9]{1,4}",
        3 => any_of(&[" ", "  ", "\t", "\r", "\n", "\x1c", "\x1f", "\u{85}", "\u{a0}", "\u{2028}", "\u{200b}"]),
        3 => any_of(&["“", "”", "«", "»", "‘", "’", "„", "–", "—", "…", "--", "..", "...", ",,"]),
        4 => any_of(&[
            "cannot", "gonna", "'tis", "'twas", "d'ye", "wanna", "more'n", "lemme", "gimme", "gotta", "can't",
            "Cannot", "D'YE", "N'T", "'Ll", "gİmme", "'twaſ", "'tıs", "cannot'tis",
        ]),
        4 => any_of(&["'s", "'ll", "n't", "'d", "'re", "'ve", "s", "t", "n", "re", "ſ", "'ſ", "na", "is", "a", "1"]),
        2 => any_of(&["٣", "²", "½", "Ⅷ", "é", "\u{301}", "\u{903}", "\u{200d}", "‿", "İ", "ß", "Ⓐ", "北", "😀"]),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

fn check_spans(text: &str) -> Result<(), TestCaseError> {
    let mut last = 0;
    for (start, end, token) in tokens(text) {
        prop_assert!(last <= start && start < end);
        prop_assert!(text[last..start].chars().all(is_space));
        let source = &text[start..end];
        match token.as_str() {
            "``" => prop_assert!(["\"", "''", "``"].contains(&source)),
            "''" => prop_assert!(["\"", "''"].contains(&source)),
            _ => prop_assert_eq!(source, token),
        }
        last = end;
    }
    prop_assert!(text[last..].chars().all(is_space));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn tokens_equal_the_result_of_nltks_expressions(text in awkward()) {
        prop_assert_eq!(words(&text), pass_by_pass(&text));
    }

    #[test]
    fn tokens_except_quotes_equal_their_source_and_omit_only_white_space(
        awkward in awkward(),
        any in any::<String>(),
    ) {
        check_spans(&awkward)?;
        check_spans(&any)?;
    }
}

/// The expected text is the output of NLTK itself, with tokens joined by spaces.
#[test]
fn tokens_equal_the_output_of_nltk() {
    for (text, expected) in [
        (
            "good muffins cost $3.88 (roughly 3,36 euros) in new york.  please buy me two of them.",
            "good muffins cost $ 3.88 ( roughly 3,36 euros ) in new york. please buy me two of them .",
        ),
        ("\"we can't,\" she said -- \"they'll cannot!\"", "`` we ca n't , '' she said -- `` they 'll can not ! ''"),
        (
            "'tis the dogs' day; d'ye wanna, or gonna 'wanna' it? cannot'tis",
            "' tis the dogs ' day ; d 'ye wan na , or gon na ' wan na ' it ? can not 't is",
        ),
        ("he said ''no'' and (''yes'').", "he said `` no '' and ( `` yes '' ) ."),
        ("``a``` b: ,,5 1,000 1:00, a,,", "`` a `` ` b : , ,5 1,000 1:00 , a , ,"),
        ("the u.s. (n.a.s.a.)”  ", "the u.s. ( n.a.s.a . ) ”"),
        ("rock 'n' roll 'em o'clock o's' more'n 's", "rock 'n ' roll ' em o'clock o 's ' more 'n 's"),
        (
            "«guillemets» “curly” ‘single’ – dash — em… e.g...",
            "« guillemets » “ curly ” ‘ single ’ – dash — em… e.g ...",
        ),
        (
            "half:½ three:٣ x'½ 'e\u{301} '\u{301}e cannot\u{301} can\u{301}not",
            "half : ½ three:٣ x'½ ' e\u{301} ' \u{301}e can not \u{301} can\u{301}not",
        ),
    ] {
        assert_eq!(words(text).join(" "), expected, "{text:?}");
    }
}
