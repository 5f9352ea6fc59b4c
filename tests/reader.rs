//! Tests of reading files: a file that changes while it is read, and rows that are longer than a chunk.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use cse_core::doctor::diagnose;
use cse_core::text::reader::{Reader, collect_results};
use cse_core::{Error, Progress, ReadOptions, Result, Tokenizer};

/// Reads `paths` in small chunks, calls `after_first` when the first chunk has been read, and returns the number of
/// rows.
fn read(paths: &[&Path], mut after_first: impl FnMut()) -> Result<u64> {
    let options = ReadOptions { chunk_bytes: 4096, ..ReadOptions::default() };
    let progress = Progress::default();
    let inputs = paths.iter().map(|&path| PathBuf::from(path).into());
    let reader = Reader::open(inputs.collect(), options, &progress)?;
    let mut rows = 0;
    collect_results(vec![reader.work(|chunk| {
        if chunk.seq == 0 {
            after_first();
        }
        chunk.for_each_row(|_, _| rows += 1)
    })])?;
    Ok(rows)
}

fn corpus(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, "some row of text\n".repeat(10_000)).expect("the file can be written");
    path
}

#[test]
fn file_that_changes_while_it_is_read_is_named_in_the_error() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let first = corpus(folder.path(), "first.txt");
    let file = corpus(folder.path(), "changing.txt");
    let append = |path: &Path| OpenOptions::new().append(true).open(path).expect("a file");
    assert_eq!(read(&[&first, &file], || ()).expect("a corpus"), 20_000);
    let changes: [&dyn Fn(); 3] = [
        &|| append(&file).set_len(9_000).expect("it can shrink"),
        &|| append(&file).write_all(b"one more\n").expect("it can grow"),
        &|| {
            // The same content is written again, so that only the modification time differs.
            std::thread::sleep(std::time::Duration::from_millis(20));
            File::create(&file).expect("a file");
            corpus(folder.path(), "changing.txt");
        },
    ];
    for change in changes {
        corpus(folder.path(), "changing.txt");
        match read(&[&file, &first], change) {
            Err(error @ Error::FileChanged { .. }) => {
                let message = error.to_string();
                assert!(message.contains("changing.txt: the file changed while it was read"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn rows_after_a_row_longer_than_several_chunks_are_diagnosed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("long.txt");
    let text = format!("a row\n{}\nanother row\n", "word ".repeat(10_000));
    std::fs::write(&path, text).expect("the file can be written");
    let options = ReadOptions { chunk_bytes: 4096, max_line_bytes: 6000, ..ReadOptions::default() };
    let files = vec![path.into()];
    let found = diagnose(files, Tokenizer::WHITESPACE, options, 1, &Progress::default());
    let found = found.expect("a diagnosis");
    assert_eq!(found.rows, 3);
    let long = &found.faults["over_long"];
    assert_eq!((long.rows, long.first), (1, Some(2)));
}
