//! Tests of the index file (round trips, and detection of changed bytes and truncation), of ranks, and of vocabulary
//! filters.

use std::path::Path;

use cse_core::index::stats::{Counter, Stats};
use cse_core::index::store::{self, Stored};
use cse_core::text::reader::FileRecord;
use cse_core::{Augmenter, Error, Index, Options, Tokenizer, VocabularyFilter};
use proptest::prelude::*;

fn some(rows: &[String]) -> (Vec<FileRecord>, Stats) {
    let mut counter = Counter::new(Tokenizer::UNICODE);
    for row in rows {
        counter.count_row(row, None);
    }
    let file = FileRecord {
        path: "a \"quoted\"/päth.txt".into(),
        bytes: 12,
        rows: rows.len() as u64,
        xxh3: "0123".into(),
        column: Some("text".into()),
    };
    (vec![file], counter.finish().0)
}

fn open(bytes: &[u8]) -> Result<Stored, Error> {
    store::deserialize(bytes, Path::new("x/index.safetensors"))
}

fn same(stored: &Stored, files: &[FileRecord], stats: &Stats) -> bool {
    stored.files == files && stored.stats == *stats && stored.tokenizer == Tokenizer::UNICODE
}

proptest! {
    #[test]
    fn index_read_back_equals_the_index_that_was_written(rows in prop::collection::vec("\\PC{0,30}", 1..20)) {
        let (files, stats) = some(&rows);
        let bytes = store::serialize(Tokenizer::UNICODE, &files, &stats).expect("it can be written");
        let index = open(&bytes).expect("it can be read");
        prop_assert!(same(&index, &files, &stats));
    }

    #[test]
    fn any_bytes_are_read_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = open(&bytes).and_then(|stored| stored.into_index(VocabularyFilter::default()));
    }
}

#[test]
fn every_changed_byte_is_an_error_or_has_no_effect() {
    let rows: Vec<String> = ["the cat sat", "the dog: 1,000 dogs!", "", "Ünïcödé cat"].map(String::from).to_vec();
    let (files, stats) = some(&rows);
    let bytes = store::serialize(Tokenizer::UNICODE, &files, &stats).expect("it can be written");
    let mut unnoticed = 0;
    for at in 0..bytes.len() {
        for flip in [0x01, 0x20, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            if let Ok(index) = open(&damaged) {
                assert!(same(&index, &files, &stats), "byte {at} ^ {flip:#x} went unnoticed");
                unnoticed += 1;
            }
        }
    }
    assert!(unnoticed < bytes.len() / 20, "{unnoticed} changes without effect are too many");
}

#[test]
fn every_truncation_is_an_error() {
    let (files, stats) = some(&["one two three".into(), "two four".into()]);
    let bytes = store::serialize(Tokenizer::UNICODE, &files, &stats).expect("it can be written");
    for size in 0..bytes.len() {
        assert!(open(&bytes[..size]).is_err(), "{size} of {} bytes", bytes.len());
    }
}

#[test]
fn terms_are_ranked_by_maximum_score_with_prefix_sums() {
    let (files, stats) = some(&["a b".into(), "a c c".into(), "a d".into()]);
    let index = Index::new(Tokenizer::UNICODE, files, stats);
    let names: Vec<&str> = index.by_rank.iter().map(|&t| index.term(t as usize)).collect();
    // c: ln(1 + 2/3) ln 3; b and d: ln(1 + 1/2) ln 3, in byte order; a is in every document and has score 0.
    assert_eq!(names, ["c", "b", "d", "a"]);
    let ln3 = 3f64.ln();
    let scores = [(5f64 / 3.0).ln() * ln3, 1.5f64.ln() * ln3, 1.5f64.ln() * ln3, 0.0];
    for (rank, score) in scores.iter().enumerate() {
        assert!((index.max_score[index.by_rank[rank] as usize] - score).abs() < 1e-15);
        assert!((index.prefix[rank + 1] - scores[..=rank].iter().sum::<f64>()).abs() < 1e-15);
    }
}

#[test]
fn filter_keeps_statistics_of_kept_terms_and_idf_of_removed_terms() {
    let rows = ["a b c", "a b", "a d d", "e f"].map(String::from);
    let (files, stats) = some(&rows);
    let whole = Index::new(Tokenizer::UNICODE, files.clone(), stats.clone());
    let open = |min_df, max_terms| {
        let filter = VocabularyFilter { min_df, max_terms };
        Index::with_filter(Tokenizer::UNICODE, files.clone(), stats.clone(), filter)
    };
    let names = |index: &Index| -> Vec<String> { (0..index.len()).map(|t| index.term(t).into()).collect() };
    let frequent = open(2, None).expect("a and b stay");
    assert_eq!(names(&frequent), ["a", "b"]);
    for t in 0..2 {
        assert_eq!(frequent.idf[t], whole.idf[t]);
        assert_eq!(frequent.max_score[t], whole.max_score[t]);
    }
    // Of c, d, e and f, which have equal document frequencies, the first two in byte order are kept.
    assert_eq!(names(&open(0, Some(4)).expect("four stay")), ["a", "b", "c", "d"]);
    assert!(open(9, None).is_err());
    // A word that the filter removed has no rank, but its score does not change.
    let options = Options::new(&frequent);
    let mut augmenter = Augmenter::new(&frequent, options);
    augmenter.weigh("a d new");
    let mut plain = Augmenter::new(&whole, Options::new(&whole));
    plain.weigh("a d new");
    let seen: Vec<bool> = augmenter.words.iter().map(|word| word.seen).collect();
    assert_eq!(seen, [true, false, false]);
    for (word, same) in augmenter.words.iter().zip(&plain.words) {
        assert_eq!(word.score, same.score);
    }
}
