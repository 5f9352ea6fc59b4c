//! Tests that, for any text, the fast paths of the tokenizers return the same terms as the reference implementations.

use cse_core::text::tokenize::{Scratch, Tokenizer};
use proptest::prelude::*;

type Tokens = Vec<(usize, usize, String)>;

fn both(tokenizer: Tokenizer, row: &str) -> (Tokens, Tokens) {
    let mut scratch = Scratch::default();
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    let owned = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("terms are text");
    tokenizer.for_each(row, &mut scratch, |a, b, term| {
        fast.push((a, b, owned(term.bytes())));
    });
    tokenizer.for_each_slow(row, &mut scratch, |a, b, term| {
        slow.push((a, b, owned(term.bytes())));
    });
    (fast, slow)
}

fn terms(tokenizer: Tokenizer, row: &str) -> Vec<String> {
    let (fast, slow) = both(tokenizer, row);
    assert_eq!(fast, slow, "{row:?}");
    fast.into_iter().map(|(_, _, term)| term).collect()
}

/// Text with many of the characters that the word rules distinguish.
fn awkward() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        6 => "[a-zA-Z0-9]{1,4}",
        4 => "[ .:,;'_\"-]",
        1 => "[\\t\\r\\x0b\\x0c\\x1c-\\x1f\\x00]",
        2 => prop::sample::select(vec![
            "é", "ß", "İ", "Σ", "\u{301}", "\u{345}", "\u{200d}", "\u{ad}", "\u{85}", "\u{a0}", "\u{2028}",
            "\u{3000}", "北", "カ", "א", "\"", "·", "’", "\u{2019}", "٣", "ไทย", "Ⓜ", "🇩🇪", "👩\u{200d}👩", "\u{feff}",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn unicode_fast_path_equals_reference_implementation(row in awkward()) {
        let (fast, slow) = both(Tokenizer::UNICODE, &row);
        prop_assert_eq!(fast, slow);
    }

    #[test]
    fn whitespace_fast_path_equals_reference_implementation(row in awkward()) {
        let (fast, slow) = both(Tokenizer::WHITESPACE, &row);
        prop_assert_eq!(fast, slow);
    }

    #[test]
    fn each_span_in_lower_case_equals_its_term(row in any::<String>()) {
        for tokenizer in [Tokenizer::UNICODE, Tokenizer::WHITESPACE] {
            let (fast, slow) = both(tokenizer, &row);
            prop_assert_eq!(&fast, &slow);
            let mut last = 0;
            for (start, end, term) in fast {
                prop_assert!(last <= start && start < end);
                prop_assert_eq!(row[start..end].to_lowercase(), term);
                last = end;
            }
        }
    }
}

#[test]
fn unicode_words_include_inner_apostrophes_periods_and_commas() {
    let found = terms(Tokenizer::UNICODE, "Don't pay $1,234.50, e.g. to foo_bar@U.S.A. or a:b!");
    let expected = ["don't", "pay", "1,234.50", "e.g", "to", "foo_bar", "u.s.a", "or", "a:b"];
    assert_eq!(found, expected);
}

#[test]
fn whitespace_terms_keep_punctuation_and_are_split_as_in_python() {
    let row = "Wait,  what?\u{a0}\u{1c}NO\u{2028}w\tend";
    assert_eq!(terms(Tokenizer::WHITESPACE, row), ["wait,", "what?", "no", "w", "end"]);
}

#[test]
fn capital_sigma_at_end_of_word_becomes_final_sigma() {
    assert_eq!(terms(Tokenizer::UNICODE, "ΟΔΟΣ ΣΑΣ"), ["οδος", "σας"]);
}
