//! Builds indexes: counts the terms of files or texts, and merges several indexes into one.

use std::path::{Path, PathBuf};

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::index::stats::{CountedRows, Counter, Part, Stats};
use crate::index::store::{self, Stored};
use crate::parallel::{on_each_thread, with_threads};
use crate::progress::Progress;
use crate::text::reader::{ChunkError, FileRecord, Input, ReadOptions, Reader, collect_results};
use crate::text::tokenize::Tokenizer;

/// The result of counting files.
struct Counted {
    stored: Stored,
    /// The parts that were merged into the statistics; empty unless rows are kept.
    parts: Vec<Part>,
}

/// Counts the terms of files on all threads of the current pool. If `keep_rows` is true, the counts of every row are
/// kept for the matrix.
fn count_files(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    keep_rows: bool,
    progress: &Progress,
) -> Result<Counted> {
    let reader = Reader::open(files, options, progress)?;
    let mut parts = collect_results(on_each_thread(|| count_part(&reader, tokenizer, keep_rows)))?;
    let stats = if keep_rows {
        parts.par_iter().map(|part| part.stats.clone()).reduce(Stats::default, |a, b| a.merge(&b))
    } else {
        let stats = std::mem::take(&mut parts).into_par_iter().map(|p| p.stats);
        stats.reduce(Stats::default, |a, b| a.merge(&b))
    };
    progress.check()?;
    let (files, _) = reader.into_parts();
    let stored = Stored { tokenizer, files, stats };
    Ok(Counted { stored, parts })
}

fn count_part(reader: &Reader, tokenizer: Tokenizer, keep_rows: bool) -> Result<Part, ChunkError> {
    let mut counter = Counter::new(tokenizer);
    let mut rows = Vec::new();
    reader.work(|chunk| {
        let mut kept = keep_rows.then(CountedRows::default);
        chunk.for_each_row(|_, row| counter.count_row(row, kept.as_mut()))?;
        counter.add_repaired(chunk.repaired);
        rows.extend(kept.map(|kept| (chunk.seq, kept)));
        Ok(())
    })?;
    let (stats, local_ids) = counter.finish();
    Ok(Part { stats, local_ids, rows })
}

/// Returns an error if the corpus has no row, no document or no term.
pub fn check_filled(stats: &Stats, files: &[FileRecord], tokenizer: Tokenizer) -> Result<()> {
    if stats.counts.rows == 0 {
        return Err(FileRecord::no_rows(files));
    }
    if stats.counts.documents == 0 {
        return Err(Error::OnlyBlank {
            path: FileRecord::name_of(files),
            rows: stats.counts.rows,
            column: files.first().and_then(|file| file.column.clone()),
        });
    }
    if stats.terms.is_empty() {
        return Err(Error::NoWords { path: FileRecord::name_of(files), tokenizer: tokenizer.name() });
    }
    Ok(())
}

/// Counts the terms of files; the result may be empty.
pub fn count(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Stored> {
    let work = || count_files(files, tokenizer, options, false, progress);
    Ok(with_threads(threads, work)??.stored)
}

/// Counts the terms of files, and returns an error if the corpus contains no term.
pub fn build(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Stored> {
    let stored = count(files, tokenizer, options, threads, progress)?;
    check_filled(&stored.stats, &stored.files, tokenizer)?;
    Ok(stored)
}

/// Counts the terms of files and writes the index into the folder `dir`; writes the matrix too if `with_matrix` is
/// true.
pub fn build_to(
    dir: &Path,
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    with_matrix: bool,
    threads: usize,
    progress: &Progress,
) -> Result<Stored> {
    with_threads(threads, || {
        let Counted { stored, parts } = count_files(files, tokenizer, options, with_matrix, progress)?;
        check_filled(&stored.stats, &stored.files, tokenizer)?;
        store::save(dir, &stored, with_matrix.then_some(parts), progress)?;
        Ok(stored)
    })?
}

/// Counts the terms of texts in memory. The list of files in the index is empty.
pub fn build_from_texts<'a>(texts: impl Iterator<Item = &'a str>, tokenizer: Tokenizer) -> Result<Stored> {
    let mut counter = Counter::new(tokenizer);
    texts.for_each(|text| counter.count_row(text, None));
    let (stats, _) = counter.finish();
    check_filled(&stats, &[], tokenizer)?;
    Ok(Stored { tokenizer, files: Vec::new(), stats })
}

/// Merges indexes, in the given order, into the index of all their files. Each index is paired with the name to use
/// for it in error messages.
pub fn merge(shards: impl IntoIterator<Item = Result<(String, Stored)>>) -> Result<Stored> {
    let mut shards = shards.into_iter();
    let none = || Error::invalid("shards", "the list is empty; give at least one index");
    let (_, mut merged) = shards.next().ok_or_else(none)??;
    for shard in shards {
        let (name, stored) = shard?;
        merged = merged.merge(stored, &name)?;
    }
    Ok(merged)
}

/// Merges the indexes in the folders `shards` and writes the result into `dir`.
pub fn merge_to(dir: &Path, shards: &[PathBuf]) -> Result<Stored> {
    let named = |shard: &PathBuf| store::read(shard).map(|stored| (shard.display().to_string(), stored));
    let merged = merge(shards.iter().map(named))?;
    store::save(dir, &merged, None, &Progress::default())?;
    Ok(merged)
}

/// Merges indexes given as bytes.
pub fn merge_bytes(shards: &[&[u8]]) -> Result<Stored> {
    merge(shards.iter().map(|bytes| {
        let stored = store::deserialize(bytes, Path::new("shard"))?;
        let name = stored.files.first().map_or("shard", |file| &file.path);
        Ok((name.to_owned(), stored))
    }))
}

/// Writes an index given as bytes into `dir`, and returns an error if the index contains no term.
pub fn save_bytes(dir: &Path, bytes: &[u8]) -> Result<Stored> {
    let stored = store::deserialize(bytes, Path::new("bytes"))?;
    check_filled(&stored.stats, &stored.files, stored.tokenizer)?;
    store::save_bytes(dir, bytes)?;
    Ok(stored)
}
