//! The sufficient statistics of a corpus: the number N of documents, and for each term its document frequency and the
//! maximum over documents of c/L, where c is the term's count in a document and L the document's length in terms.
//!
//! UNA needs no other statistics: the idf of a term is the same in all documents, so ln(1 + c/L) * idf is largest in
//! the document in which c/L is largest. Merging two [`Stats`] adds their N and document frequencies, and keeps the
//! larger of the two maxima of each term. Merging is associative and commutative. Threads, shards and machines can
//! therefore count separately, and merging their statistics in any order gives the same bytes.

use std::cmp::Ordering;

use rayon::prelude::*;

use crate::index::term_table::TermTable;
use crate::parallel::in_pool;
use crate::text::row::is_blank;
use crate::text::tokenize::{Scratch, Tokenizer};

/// A list of terms, stored end to end in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    pub bytes: Vec<u8>,
    /// Term `i` is `bytes[offsets[i]..offsets[i + 1]]`; the first offset is 0.
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
        Terms { bytes: Vec::with_capacity(bytes), offsets }
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

/// Numbers of rows, documents and tokens in a corpus.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// N: rows that are not blank.
    pub documents: u64,
    pub rows: u64,
    pub blank: u64,
    /// Documents that contain no term.
    pub wordless: u64,
    pub tokens: u64,
    /// Number of rows in which bytes that are not UTF-8 were replaced.
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

/// The sufficient statistics of a corpus. Terms are in byte order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    pub counts: Counts,
    pub terms: Terms,
    /// Number of documents that contain each term.
    pub df: Vec<u64>,
    /// For each term, the maximum over documents of c/L, where c is the count of the term in a document of L terms.
    pub max_frequency: Vec<f64>,
}

impl Stats {
    /// Returns the statistics of the two corpora combined.
    pub fn merge(&self, other: &Stats) -> Stats {
        if self.terms.is_empty() || other.terms.is_empty() {
            let (full, none) = if self.terms.is_empty() { (other, self) } else { (self, other) };
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
            max_frequency: Vec::with_capacity(n + m),
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
                    out.max_frequency.push(self.max_frequency[i].max(other.max_frequency[j]));
                }
            }
            i += usize::from(order != Ordering::Greater);
            j += usize::from(order != Ordering::Less);
        }
        out
    }

    /// Returns statistics with only the terms `kept` (term numbers in ascending order) and the same `counts`.
    pub fn only(&self, kept: &[u32]) -> Stats {
        let mut out = Stats { counts: self.counts, ..Stats::default() };
        for &t in kept {
            out.push_from(self, t as usize);
        }
        out
    }

    fn push_from(&mut self, other: &Stats, i: usize) {
        self.terms.push(other.terms.get(i));
        self.df.push(other.df[i]);
        self.max_frequency.push(other.max_frequency[i]);
    }
}

#[derive(Clone, Debug)]
struct Cell {
    df: u64,
    max_frequency: f64,
    /// Number of the last document that contained the term.
    document: u64,
    /// Count of the term in this document.
    count: u32,
}

/// Counts the terms of rows on one thread.
pub struct Counter {
    tokenizer: Tokenizer,
    table: TermTable<Cell>,
    counts: Counts,
    scratch: Scratch,
    /// The distinct terms of the current document, as ids of this counter.
    distinct: Vec<u32>,
}

/// The distinct terms of some rows with their counts, kept to build the TF-IDF matrix. A term is represented by its id
/// in the counter that counted the rows.
#[derive(Debug, Default)]
pub struct CountedRows {
    pub ids: Vec<u32>,
    pub counts: Vec<u32>,
    /// For each row, its number of distinct terms and its length in terms.
    pub rows: Vec<(u32, u32)>,
}

/// The counts of one thread.
pub struct Part {
    pub stats: Stats,
    /// For each term of `stats`, its id in `rows`.
    pub local_ids: Vec<u32>,
    /// For each chunk, its number and its counted rows, in the order in which the thread read the chunks; empty unless
    /// rows are kept.
    pub rows: Vec<(u64, CountedRows)>,
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

    /// Returns the number of tokens in the counted rows, including repetitions of a term.
    pub fn tokens(&self) -> u64 {
        self.counts.tokens
    }

    /// Counts the terms of one row, and appends the row's counts to `kept` if it is given.
    pub fn count_row(&mut self, row: &str, kept: Option<&mut CountedRows>) {
        let Counter { tokenizer, table, counts, scratch, distinct } = self;
        counts.rows += 1;
        let document = counts.rows;
        distinct.clear();
        let mut length = 0u32;
        tokenizer.for_each(row, scratch, |_, _, term| {
            length += 1;
            let id = table.intern(&term, || Cell { df: 0, max_frequency: 0.0, document: 0, count: 0 });
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
            let blank = is_blank(tokenizer.text(row));
            counts.blank += u64::from(blank);
            counts.documents += u64::from(!blank);
            counts.wordless += u64::from(!blank);
        } else {
            counts.documents += 1;
        }
        let once = 1.0 / f64::from(length); // infinite and unused for a row without terms
        for &id in distinct.iter() {
            let cell = table.value_mut(id as usize);
            let frequency = if cell.count == 1 { once } else { f64::from(cell.count) / f64::from(length) };
            cell.max_frequency = cell.max_frequency.max(frequency);
        }
        if let Some(kept) = kept {
            kept.ids.extend_from_slice(distinct);
            kept.counts.extend(distinct.iter().map(|&id| table.value(id as usize).count));
            kept.rows.push((distinct.len() as u32, length));
        }
    }

    /// Adds `rows` to the number of rows in which invalid bytes were replaced.
    pub fn add_repaired(&mut self, rows: u64) {
        self.counts.repaired += rows;
    }

    /// Returns the statistics, with terms in byte order, and the id that each of these terms has in this counter.
    pub fn finish(self) -> (Stats, Vec<u32>) {
        let table = &self.table;
        // Comparing the first eight bytes as a number decides nearly all comparisons without reading a string.
        let mut order: Vec<(u64, u32)> = (0..table.len()).map(|id| (first_eight(table.term(id)), id as u32)).collect();
        in_pool(|| {
            order.par_sort_unstable_by(|a, b| {
                a.0.cmp(&b.0).then_with(|| table.term(a.1 as usize).cmp(table.term(b.1 as usize)))
            });
        });
        let mut stats = Stats {
            counts: self.counts,
            terms: Terms::with_capacity(table.len(), 8 * table.len()),
            df: Vec::with_capacity(table.len()),
            max_frequency: Vec::with_capacity(table.len()),
        };
        for &(_, id) in &order {
            let cell = table.value(id as usize);
            stats.terms.push(table.term(id as usize));
            stats.df.push(cell.df);
            stats.max_frequency.push(cell.max_frequency);
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
