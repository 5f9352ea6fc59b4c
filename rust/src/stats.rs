//! One pass over text: N, and for each term its document frequency and max over documents of c/L.
//!
//! That is all UNA needs: idf is constant over documents, so max over d of ln(1 + c/L) * idf is reached where
//! c/L is largest. `Stats` merge by +, + and max, so they form a commutative monoid: threads, shards and
//! machines count apart and merge, in any order, to the same bytes.

use std::cmp::Ordering;

use rayon::prelude::*;

use crate::corpus::{Fault, FileRecord, Input, Progress, ReadOptions, Reader, is_blank, settle};
use crate::error::{Error, Result};
use crate::table::TermTable;
use crate::tokenize::{Scratch, Tokenizer};

/// Strings end to end in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub bytes: Vec<u8>,
    /// One more than there are terms: term `i` is `bytes[offsets[i]..offsets[i + 1]]`.
    pub offsets: Vec<u64>,
}

impl Default for Terms {
    fn default() -> Self {
        Terms::with_capacity(0, 0)
    }
}

impl Terms {
    fn with_capacity(terms: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(terms + 1);
        offsets.push(0);
        Terms {
            bytes: Vec::with_capacity(bytes),
            offsets,
        }
    }

    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, i: usize) -> &[u8] {
        &self.bytes[self.offsets[i] as usize..self.offsets[i + 1] as usize]
    }

    fn push(&mut self, term: &[u8]) {
        self.bytes.extend_from_slice(term);
        self.offsets.push(self.bytes.len() as u64);
    }
}

/// How many rows of which kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// N: rows that are not blank.
    pub documents: u64,
    pub rows: u64,
    pub blank: u64,
    /// Documents without any term.
    pub wordless: u64,
    pub tokens: u64,
    /// Rows with bytes that were not UTF-8 and were replaced.
    pub repaired: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.documents += other.documents;
        self.rows += other.rows;
        self.blank += other.blank;
        self.wordless += other.wordless;
        self.tokens += other.tokens;
        self.repaired += other.repaired;
    }
}

/// The sufficient statistics of a corpus, terms in byte order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub counts: Counts,
    pub terms: Terms,
    /// Documents that hold the term.
    pub df: Vec<u64>,
    /// Max over documents of c/L: the term's count over the number of terms in the document.
    pub max_tf: Vec<f64>,
}

impl Stats {
    /// The statistics of both corpora together.
    pub fn merge(&self, other: &Stats) -> Stats {
        if self.terms.is_empty() || other.terms.is_empty() {
            let (full, none) = if self.terms.is_empty() {
                (other, self)
            } else {
                (self, other)
            };
            let mut merged = full.clone();
            merged.counts.add(&none.counts);
            return merged;
        }
        let (n, m) = (self.terms.len(), other.terms.len());
        let bytes = self.terms.bytes.len() + other.terms.bytes.len();
        let mut out = Stats {
            counts: self.counts,
            terms: Terms::with_capacity(n + m, bytes),
            df: Vec::with_capacity(n + m),
            max_tf: Vec::with_capacity(n + m),
        };
        out.counts.add(&other.counts);
        let (mut i, mut j) = (0, 0);
        while i < n || j < m {
            let order = match (i < n, j < m) {
                (true, true) => self.terms.get(i).cmp(other.terms.get(j)),
                (true, false) => Ordering::Less,
                _ => Ordering::Greater,
            };
            match order {
                Ordering::Less => out.push_from(self, i),
                Ordering::Greater => out.push_from(other, j),
                Ordering::Equal => {
                    out.terms.push(self.terms.get(i));
                    out.df.push(self.df[i] + other.df[j]);
                    out.max_tf.push(self.max_tf[i].max(other.max_tf[j]));
                }
            }
            i += usize::from(order != Ordering::Greater);
            j += usize::from(order != Ordering::Less);
        }
        out
    }

    /// Some of the terms, by number, ascending; the counts stay.
    pub fn only(&self, kept: &[u32]) -> Stats {
        let mut out = Stats {
            counts: self.counts,
            ..Stats::default()
        };
        for &t in kept {
            out.push_from(self, t as usize);
        }
        out
    }

    fn push_from(&mut self, other: &Stats, i: usize) {
        self.terms.push(other.terms.get(i));
        self.df.push(other.df[i]);
        self.max_tf.push(other.max_tf[i]);
    }
}

#[derive(Clone, Debug)]
struct Cell {
    df: u64,
    max_tf: f64,
    /// The last document it was seen in, and how often there.
    document: u64,
    count: u32,
}

/// One thread's counting.
pub struct Counter {
    tokenizer: Tokenizer,
    table: TermTable<Cell>,
    counts: Counts,
    scratch: Scratch,
    /// The distinct terms of the current document, by this counter's ids.
    distinct: Vec<u32>,
}

/// The distinct terms of some rows with their counts, by one counter's ids, kept for the matrix.
#[derive(Debug, Default)]
pub struct CountedRows {
    pub ids: Vec<u32>,
    pub counts: Vec<u32>,
    /// For each row its number of distinct terms and of terms.
    pub rows: Vec<(u32, u32)>,
}

impl Counter {
    pub fn new(tokenizer: Tokenizer) -> Self {
        Counter {
            tokenizer,
            table: TermTable::with_capacity(1 << 12),
            counts: Counts::default(),
            scratch: Scratch::default(),
            distinct: Vec::new(),
        }
    }

    /// Terms counted so far.
    pub fn tokens(&self) -> u64 {
        self.counts.tokens
    }

    pub fn count_row(&mut self, row: &str, kept: Option<&mut CountedRows>) {
        let Counter {
            tokenizer,
            table,
            counts,
            scratch,
            distinct,
        } = self;
        counts.rows += 1;
        let document = counts.rows;
        distinct.clear();
        let mut length = 0u32;
        tokenizer.for_each(row, scratch, |_, _, term| {
            length += 1;
            let id = table.intern(&term, || Cell {
                df: 0,
                max_tf: 0.0,
                document: 0,
                count: 0,
            });
            let cell = table.value_mut(id);
            if cell.document == document {
                cell.count += 1;
            } else {
                cell.document = document;
                cell.count = 1;
                cell.df += 1;
                distinct.push(id as u32);
            }
        });
        counts.tokens += u64::from(length);
        if length == 0 {
            let blank = is_blank(row);
            counts.blank += u64::from(blank);
            counts.documents += u64::from(!blank);
            counts.wordless += u64::from(!blank);
        } else {
            counts.documents += 1;
        }
        let once = 1.0 / f64::from(length); // 0 terms: infinite, and used for nothing
        for &id in distinct.iter() {
            let cell = table.value_mut(id as usize);
            let tf = if cell.count == 1 {
                once
            } else {
                f64::from(cell.count) / f64::from(length)
            };
            cell.max_tf = cell.max_tf.max(tf);
        }
        if let Some(kept) = kept {
            kept.ids.extend_from_slice(distinct);
            kept.counts
                .extend(distinct.iter().map(|&id| table.value(id as usize).count));
            kept.rows.push((distinct.len() as u32, length));
        }
    }

    /// The statistics with terms in byte order, and the counter's id of each.
    pub fn finish(self) -> (Stats, Vec<u32>) {
        let table = &self.table;
        // Sorting by the first eight bytes as a number decides nearly all comparisons without touching a string.
        let mut order: Vec<(u64, u32)> = (0..table.len())
            .map(|id| (first_eight(table.term(id)), id as u32))
            .collect();
        order.par_sort_unstable_by(|a, b| {
            a.0.cmp(&b.0)
                .then_with(|| table.term(a.1 as usize).cmp(table.term(b.1 as usize)))
        });
        let mut stats = Stats {
            counts: self.counts,
            terms: Terms::with_capacity(table.len(), 8 * table.len()),
            df: Vec::with_capacity(table.len()),
            max_tf: Vec::with_capacity(table.len()),
        };
        for &(_, id) in &order {
            let cell = table.value(id as usize);
            stats.terms.push(table.term(id as usize));
            stats.df.push(cell.df);
            stats.max_tf.push(cell.max_tf);
        }
        (stats, order.into_iter().map(|(_, id)| id).collect())
    }
}

fn first_eight(term: &[u8]) -> u64 {
    let mut head = [0; 8];
    let n = term.len().min(8);
    head[..n].copy_from_slice(&term[..n]);
    u64::from_be_bytes(head)
}

/// One worker's share of a corpus.
pub struct Part {
    pub stats: Stats,
    /// `stats` term number -> the id that `rows` use.
    pub local_ids: Vec<u32>,
    /// Chunk number and rows, in the order this worker met them; empty unless rows were asked for.
    pub rows: Vec<(u64, CountedRows)>,
}

/// What a pass over files yields.
pub struct Counted {
    pub stats: Stats,
    pub files: Vec<FileRecord>,
    /// For the matrix; statistics of the parts merge to `stats`.
    pub parts: Vec<Part>,
}

/// Counts `files` with all threads of the current rayon pool. `keep_rows` also keeps every row's counts.
pub fn count(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    keep_rows: bool,
    progress: &Progress,
) -> Result<Counted> {
    let reader = Reader::open(files, options, progress)?;
    let mut parts = settle(rayon::broadcast(|_| {
        count_part(&reader, tokenizer, keep_rows)
    }))?;
    let stats = if keep_rows {
        parts
            .par_iter()
            .map(|part| part.stats.clone())
            .reduce(Stats::default, |a, b| a.merge(&b))
    } else {
        let stats = std::mem::take(&mut parts).into_par_iter().map(|p| p.stats);
        stats.reduce(Stats::default, |a, b| a.merge(&b))
    };
    let files = reader.into_records();
    Ok(Counted {
        stats,
        files,
        parts,
    })
}

/// Refuses a corpus without a sentence, or without a word.
pub fn check_filled(stats: &Stats, files: &[FileRecord], tokenizer: Tokenizer) -> Result<()> {
    let path = || {
        files
            .first()
            .map_or("texts".into(), |file| file.path.clone())
    };
    if stats.counts.rows == 0 {
        return Err(Error::NoRows { path: path() });
    }
    if stats.counts.documents == 0 {
        return Err(Error::OnlyBlank {
            path: path(),
            rows: stats.counts.rows,
        });
    }
    if stats.terms.is_empty() {
        return Err(Error::NoWords {
            path: path(),
            tokenizer: tokenizer.name(),
        });
    }
    Ok(())
}

fn count_part(reader: &Reader, tokenizer: Tokenizer, keep_rows: bool) -> Result<Part, Fault> {
    let mut counter = Counter::new(tokenizer);
    let mut rows = Vec::new();
    reader.work(|chunk| {
        let mut kept = keep_rows.then(CountedRows::default);
        chunk.for_each_row(|_, row| counter.count_row(row, kept.as_mut()))?;
        counter.counts.repaired += chunk.repaired;
        rows.extend(kept.map(|kept| (chunk.seq, kept)));
        Ok(())
    })?;
    let (stats, local_ids) = counter.finish();
    Ok(Part {
        stats,
        local_ids,
        rows,
    })
}
