//! Converts results of the core to tuples for Python.

use crate::index::stats::Counts;
use crate::index::store::Stored;
pub use crate::index::store::le_bytes;
use crate::text::reader::FileRecord;
use crate::una::options::Report;

/// A file record: (path, bytes, rows, xxh3, column).
pub type FileTuple = (String, u64, u64, String, Option<String>);

/// Converts a file record.
pub fn file_tuple(file: &FileRecord) -> FileTuple {
    let FileRecord { path, bytes, rows, xxh3, column } = file.clone();
    (path, bytes, rows, xxh3, column)
}

/// Counts of a corpus: (documents, rows, blank, wordless, tokens, repaired, terms).
pub type CountsTuple = (u64, u64, u64, u64, u64, u64, usize);

/// Converts counts and the number of terms.
pub fn counts_tuple(counts: &Counts, terms: usize) -> CountsTuple {
    let Counts { documents, rows, blank, wordless, tokens, repaired } = *counts;
    (documents, rows, blank, wordless, tokens, repaired, terms)
}

/// Converts the counts and files of an index.
pub fn stored_tuple(stored: &Stored) -> (CountsTuple, Vec<FileTuple>) {
    let counts = counts_tuple(&stored.stats.counts, stored.stats.terms.len());
    (counts, stored.files.iter().map(file_tuple).collect())
}

/// A report: (rows, blank, unchanged, words, unseen, replaced, repaired).
pub type ReportTuple = (u64, u64, u64, u64, u64, u64, u64);

/// Converts a report.
pub fn report_tuple(report: &Report) -> ReportTuple {
    let Report { rows, blank, unchanged, words, unseen, replaced, repaired } = *report;
    (rows, blank, unchanged, words, unseen, replaced, repaired)
}
