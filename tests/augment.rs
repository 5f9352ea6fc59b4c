//! Tests of drawing replacements, augmenting arbitrary text, and looking up words in the index.

use cse_core::index::stats::Counter;
use cse_core::una::options::OutputForm;
use cse_core::una::radius::draw;
use cse_core::{Augmenter, Index, Options, Tokenizer};
use proptest::prelude::*;

fn index(rows: &[&str]) -> Index {
    let mut counter = Counter::new(Tokenizer::UNICODE);
    for row in rows {
        counter.count_row(row, None);
    }
    Index::new(Tokenizer::UNICODE, Vec::new(), counter.finish().0)
}

fn example() -> Index {
    index(&["a b c d", "a a b", "e f g h i j", "k l", "a m n", "o", "p q r s t u v", "SS ß"])
}

proptest! {
    #[test]
    fn drawn_rank_is_within_radius_and_never_that_of_the_word_itself(
        place in 0usize..30, seen: bool, radius in 1usize..40, u in 0.0f64..1.0
    ) {
        let index = example();
        let v = index.len();
        let rank = if seen { place % v } else { place % (v + 1) };
        let new = draw(&index, rank, seen, 0, radius, u).expect("there are other terms");
        prop_assert!(new < v);
        prop_assert!(!seen || new != rank);
        let low = rank.saturating_sub(radius);
        let high = rank + radius + usize::from(seen);
        prop_assert!(low <= new && new < high);
    }

    #[test]
    fn text_changes_if_and_only_if_a_word_is_replaceable(text in any::<String>(), seed: u64, row: u64, beta in 0.0f64..=1.0, plain: bool) {
        let index = example();
        let surface = if plain { OutputForm::Plain } else { OutputForm::Keep };
        let options = Options { seed, beta, surface, ..Options::new(&index) };
        let options = options.checked(&index).expect("valid options");
        let mut augmenter = Augmenter::new(&index, options);
        let mut out = Vec::from("before ");
        augmenter.augment(&text, row, &mut out);
        let out = String::from_utf8(out).expect("a negative is UTF-8");
        let negative = out.strip_prefix("before ").expect("the buffer is only appended to");
        let replaceable = augmenter.words.iter().any(|word| word.replaceable);
        prop_assert_eq!(negative != text, replaceable);
        prop_assert!(augmenter.words.iter().all(|word| (0.0..=1.0).contains(&word.p)));
    }
}

#[test]
fn ranks_drawn_at_ends_of_unit_interval_are_within_radius() {
    let index = example();
    for rank in 0..index.len() {
        for radius in [1, 3, 1000] {
            for u in [0.0, f64::MIN_POSITIVE, 0.5, 1.0 - f64::EPSILON / 2.0] {
                let new = draw(&index, rank, true, 0, radius, u).expect("there are other terms");
                assert!(new != rank && new.abs_diff(rank) <= radius);
            }
        }
    }
}

#[test]
fn look_up_in_large_vocabulary_finds_all_terms_but_no_other_words() {
    // Terms shorter than, equal to and longer than sixteen bytes. The tables take several megabytes, on huge pages if
    // the system provides them.
    let word = |i: usize| match i % 3 {
        0 => format!("w{i}"),
        1 => format!("sixteen{i:09}"),
        _ => format!("averylongwordindeed{i}"),
    };
    let rows: Vec<String> = (0..120_000).map(|i| format!("{} common", word(i))).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    let index = index(&rows);
    assert_eq!(index.len(), 120_001);
    let mut augmenter = Augmenter::new(&index, Options::new(&index));
    for i in (0..120_000).step_by(7) {
        augmenter.weigh(&format!("{} {}x", word(i), word(i)));
        let found = &augmenter.words;
        assert_eq!((found[0].seen, found[1].seen), (true, false), "{}", word(i));
        assert_eq!(index.term(index.term_at(found[0].rank)), word(i));
    }
}
