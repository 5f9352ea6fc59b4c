//! Tests of the index file: round trips, and detection of changed bytes and truncation.

use std::path::Path;

use cse_core::index::stats::{Counter, Stats};
use cse_core::index::store::{self, Stored};
use cse_core::text::reader::FileRecord;
use cse_core::{Error, Tokenizer, VocabularyFilter};
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
