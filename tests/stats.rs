//! Tests of counting: threads, chunks and merges do not change the result, and no input causes a panic.

use std::io::Write;
use std::path::PathBuf;

use cse_core::error::Place;
use cse_core::index::build;
use cse_core::index::stats::{Counter, Stats};
use cse_core::{Error, Progress, ReadOptions, Tokenizer};
use proptest::prelude::*;

fn count(rows: &[String]) -> Stats {
    let mut counter = Counter::new(Tokenizer::WHITESPACE);
    for row in rows {
        counter.count_row(row, None);
    }
    counter.finish().0
}

fn rows() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec("([a-d]{1,2} ){0,6}", 0..12)
}

fn build_bytes(bytes: &[u8], threads: usize) -> Result<Stats, Error> {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("enough disk space");
    let files = vec![PathBuf::from(file.path()).into()];
    let options = ReadOptions { max_line_bytes: 4000, ..ReadOptions::default() };
    build::build(files, Tokenizer::UNICODE, options, threads, &Progress::default()).map(|stored| stored.stats)
}

proptest! {
    #[test]
    fn merging_is_commutative_and_associative_and_equals_counting_all_rows(a in rows(), b in rows(), c in rows()) {
        let (x, y, z) = (count(&a), count(&b), count(&c));
        prop_assert_eq!(x.merge(&y), y.merge(&x));
        prop_assert_eq!(x.merge(&y).merge(&z), x.merge(&y.merge(&z)));
        prop_assert_eq!(x.merge(&Stats::default()), x.clone());
        let all: Vec<String> = [a, b, c].concat();
        prop_assert_eq!(x.merge(&y).merge(&z), count(&all));
    }

    #[test]
    fn any_bytes_are_counted_or_refused_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let _ = build_bytes(&bytes, 2);
    }

    #[test]
    fn any_text_is_counted_unless_it_contains_no_word(text in "\\PC{0,400}(\n\\PC{0,80}){0,5}") {
        match build_bytes(text.as_bytes(), 1) {
            Ok(stats) => {
                let c = stats.counts;
                prop_assert_eq!(c.rows, text.split('\n').count() as u64 - u64::from(text.ends_with('\n')));
                prop_assert_eq!(c.documents + c.blank, c.rows);
                prop_assert!(stats.df.iter().all(|&df| df >= 1 && df <= c.documents));
            }
            Err(Error::EmptyFile { .. } | Error::NoRows { .. } | Error::OnlyBlank { .. } | Error::NoWords { .. }) => {}
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

#[test]
fn rows_that_span_chunks_are_counted_once() {
    // A row has about a thousand bytes, and half a megabyte is read at a time, so most reads end inside a row.
    let rows: Vec<String> = (0..2000).map(|i| format!("w{i} {}", "x ".repeat(490 + i % 7))).collect();
    let text = rows.join("\n");
    let options = ReadOptions::default();
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(text.as_bytes()).expect("enough disk space");
    let run = |threads| {
        build::build(
            vec![PathBuf::from(file.path()).into()],
            Tokenizer::WHITESPACE,
            options.clone(),
            threads,
            &Progress::default(),
        )
        .expect("a corpus")
        .stats
    };
    let (one, three) = (run(1), run(3));
    assert_eq!(one, three);
    assert_eq!(one, count(&rows));
    assert_eq!(one.counts.rows, 2000);
}

#[test]
fn error_names_first_invalid_line_for_any_number_of_threads() {
    let mut text = "fine row\n".repeat(400_000).into_bytes();
    for line in [150_000, 150_100, 250_000, 390_000] {
        text[9 * line] = 0xff;
    }
    for threads in [1, 2, 5] {
        match build_bytes(&text, threads) {
            Err(Error::InvalidUtf8 { place, .. }) => {
                let offset = Some(9 * 150_000);
                let line = 150_001;
                assert_eq!(place, Place::Line { line, offset }, "{threads} threads");
            }
            other => panic!("{other:?}"),
        }
    }
}
