//! Tests that rayon's global thread pool is never used. A forked child process would not have the threads of that pool.

use std::io::Write;
use std::path::{Path, PathBuf};

use cse_core::index::{build, store};
use cse_core::una::files::{Compression, OutputOptions, augment_files};
use cse_core::{Options, Progress, ReadOptions, Tokenizer, VocabularyFilter, doctor};

#[test]
fn no_call_starts_the_global_thread_pool() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let corpus = folder.path().join("corpus.txt");
    let mut file = std::fs::File::create(&corpus).expect("a file");
    for i in 0..20_000 {
        writeln!(file, "row number {i} of {}", i % 97).expect("the file can be written");
    }
    drop(file);
    let inputs = || vec![PathBuf::from(&corpus).into()];
    let (read, progress) = (ReadOptions::default(), Progress::default());
    let words = Tokenizer::UNICODE;
    let dir = folder.path().join("index");
    build::build_to(&dir, inputs(), words, read.clone(), true, 0, &progress).expect("a corpus");
    let index = store::open(&dir, VocabularyFilter::default()).expect("an index");
    let filter = VocabularyFilter { min_df: 2, max_terms: Some(50) };
    store::open(&dir, filter).expect("an index");
    build::build(inputs(), words, read.clone(), 2, &progress).expect("a corpus");
    let texts = ["one text", "another text"];
    let stored = build::build_from_texts(texts.into_iter(), words).expect("texts");
    let bytes = stored.to_bytes().expect("an index");
    build::merge_bytes(&[&bytes, &bytes]).expect("two shards");
    build::merge_to(&folder.path().join("merged"), &[dir.clone(), dir]).expect("two shards");
    store::deserialize(&bytes, Path::new("bytes"))
        .and_then(|stored| stored.into_index(VocabularyFilter::default()))
        .expect("an index");
    let writing = OutputOptions { copies: 1, as_records: false, compression: Compression::None, first_row: None };
    let (options, output) = (Options::new(&index), folder.path().join("out.txt"));
    let output = Some(output.as_path());
    augment_files(&index, options, writing, inputs(), read.clone(), output, 0, &progress).expect("a file");
    doctor::diagnose(inputs(), words, read, 0, &progress).expect("a corpus");

    // `build_global` fails if the global pool already exists.
    let global = rayon::ThreadPoolBuilder::new().num_threads(1).build_global();
    assert!(global.is_ok(), "the global pool was started");
}
