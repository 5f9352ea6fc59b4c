//! The TF-IDF index of a corpus: statistics, and the arrays derived from them.

pub mod build;
pub mod formula;
pub mod lookup;
pub mod matrix;
mod ranking;
pub mod stats;
pub mod store;
pub mod term_table;
mod vocabulary_filter;

use std::ops::Range;

use rayon::prelude::*;

use crate::error::Result;
use crate::index::formula::{idf, max_score};
use crate::index::lookup::{Known, Lookup, on_huge_pages};
use crate::index::ranking::terms_by_rank;
use crate::index::stats::Stats;
use crate::index::term_table::TermTable;
use crate::parallel::in_pool;
use crate::text::reader::FileRecord;
use crate::text::term_key::{Key, PAD, Term};
use crate::text::tokenize::Tokenizer;
use crate::text::wordpieces::CLASSES;

pub use crate::index::vocabulary_filter::VocabularyFilter;

/// The statistics of a corpus, and all arrays that UNA needs.
///
/// Terms are numbered in byte order. The rank of a term is its position by maximum score, largest first (`ranking.rs`).
#[derive(Debug)]
pub struct Index {
    pub tokenizer: Tokenizer,
    pub files: Vec<FileRecord>,
    pub stats: Stats,
    /// `idf[t] = ln(N/df[t])`.
    pub idf: Vec<f64>,
    /// `max_score[t]` is the maximum over documents of `ln(1 + c/L) * idf[t]`.
    pub max_score: Vec<f64>,
    /// The term number of each rank.
    pub by_rank: Vec<u32>,
    /// The first rank of each class of terms, and the number of terms.
    classes: [usize; CLASSES + 1],
    /// `prefix[k]` is the sum of the maximum scores of the first k ranks.
    pub prefix: Vec<f64>,
    /// The text of the term of each rank; neighbours in rank are neighbours in memory.
    texts: Vec<InlineText>,
    pub(crate) lookup: Lookup,
    /// The idf of each term that the filter removed.
    removed: TermTable<f64>,
    filter: VocabularyFilter,
}

/// The text of a term. Up to fifteen bytes are stored inline, so that writing the text takes one load instead of three.
#[derive(Clone, Copy, Debug)]
struct InlineText {
    bytes: [u8; 15],
    /// Length of the text, or `LONG` if it is longer than fifteen bytes; `bytes` then begins with the number of the
    /// term.
    len: u8,
}

const LONG: u8 = u8::MAX;

impl Index {
    /// Derives the arrays of an index from its statistics.
    pub fn new(tokenizer: Tokenizer, files: Vec<FileRecord>, stats: Stats) -> Self {
        in_pool(|| Index::derive(tokenizer, files, stats))
    }

    fn derive(tokenizer: Tokenizer, files: Vec<FileRecord>, stats: Stats) -> Self {
        let n = stats.counts.documents;
        let idf: Vec<f64> = stats.df.par_iter().map(|&df| idf(n, df)).collect();
        let max_score: Vec<f64> = idf
            .par_iter()
            .zip(&stats.max_frequency)
            .map(|(&idf, &max_frequency)| max_score(max_frequency, idf))
            .collect();
        let class = |t| tokenizer.class(stats.terms.get(t));
        let (by_rank, classes) = terms_by_rank(&max_score, class);
        let (lookup, (prefix, texts)) = rayon::join(
            || look_up_table(&stats, &by_rank, &idf),
            || (prefix_sums(&by_rank, &max_score), inline_texts(&stats, &by_rank)),
        );
        Index {
            tokenizer,
            files,
            stats,
            idf,
            max_score,
            by_rank,
            classes,
            prefix,
            texts,
            lookup,
            removed: TermTable::with_capacity(0),
            filter: VocabularyFilter::default(),
        }
    }

    /// Returns an index with only the terms that `filter` keeps. N and the lengths of documents do not change.
    pub fn with_filter(
        tokenizer: Tokenizer,
        files: Vec<FileRecord>,
        stats: Stats,
        filter: VocabularyFilter,
    ) -> Result<Self> {
        if filter.keeps_all() {
            return Ok(Index::new(tokenizer, files, stats));
        }
        let kept = filter.kept(&stats)?;
        let mut removed = TermTable::with_capacity(stats.df.len() - kept.len());
        let mut next = kept.iter().peekable();
        for t in 0..stats.df.len() {
            if next.next_if(|&&kept| kept as usize == t).is_none() {
                let mut padded = stats.terms.get(t).to_vec();
                padded.extend_from_slice(&[0; PAD]);
                let term = Term::new(&padded, 0, padded.len() - PAD);
                removed.intern(&term, || idf(stats.counts.documents, stats.df[t]));
            }
        }
        let index = Index::new(tokenizer, files, stats.only(&kept));
        Ok(Index { removed, filter, ..index })
    }

    /// Whether the index has all terms of its corpus.
    pub fn is_whole(&self) -> bool {
        self.filter.keeps_all()
    }

    /// Returns the text of the term of this rank, as UTF-8.
    #[inline]
    pub fn bytes_at(&self, rank: usize) -> &[u8] {
        let InlineText { bytes, len } = &self.texts[rank];
        if *len == LONG {
            let t = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            return self.stats.terms.get(t as usize);
        }
        &bytes[..usize::from(*len)]
    }

    /// Appends the text of the term of this rank to `out`. A short text is copied as fifteen bytes and then truncated,
    /// because a copy of fixed size is faster than one of variable size.
    #[inline]
    pub(crate) fn push_term(&self, rank: usize, out: &mut Vec<u8>) {
        let InlineText { bytes, len } = &self.texts[rank];
        if *len == LONG {
            out.extend_from_slice(self.bytes_at(rank));
        } else {
            let end = out.len() + usize::from(*len);
            out.extend_from_slice(bytes);
            out.truncate(end);
        }
    }

    /// Looks up a term by its key and, if the term is longer than sixteen bytes, also by its `bytes`.
    pub(crate) fn find(&self, key: &Key, bytes: &[u8]) -> Option<Known> {
        self.lookup.find(key, |rank| self.bytes_at(rank as usize) == bytes)
    }

    /// Returns the rank that a word of this class with this score would have: that of the first term of the class whose
    /// maximum score is not larger.
    pub fn rank_of_score(&self, score: f64, class: usize) -> usize {
        let Range { start, end } = self.ranks_of_class(class);
        start + self.by_rank[start..end].partition_point(|&t| self.max_score[t as usize] > score)
    }

    /// Returns the ranks of the terms of a class.
    pub(crate) fn ranks_of_class(&self, class: usize) -> Range<usize> {
        self.classes[class]..self.classes[class + 1]
    }

    /// Returns the number of the term of this rank.
    pub fn term_at(&self, rank: usize) -> usize {
        self.by_rank[rank] as usize
    }

    /// Returns V, the number of terms.
    pub fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Whether the index has no terms.
    pub fn is_empty(&self) -> bool {
        self.by_rank.is_empty()
    }

    /// Returns the text of term number `t`.
    pub fn term(&self, t: usize) -> &str {
        std::str::from_utf8(self.stats.terms.get(t)).expect("checked when the index was opened")
    }

    /// Returns the idf of a word that has no rank. If the filter removed the word, this is its idf in the corpus; if
    /// the corpus does not contain the word, it is ln(N).
    pub(crate) fn idf_without_rank(&self, term: &Term) -> f64 {
        let known = self.removed.get(term).copied();
        known.unwrap_or_else(|| idf(self.stats.counts.documents, 1))
    }
}

fn prefix_sums(by_rank: &[u32], max_score: &[f64]) -> Vec<f64> {
    let mut prefix = Vec::with_capacity(by_rank.len() + 1);
    on_huge_pages(&prefix);
    let mut sum = 0.0;
    prefix.push(sum);
    for &t in by_rank {
        sum += max_score[t as usize];
        prefix.push(sum);
    }
    prefix
}

fn inline_texts(stats: &Stats, by_rank: &[u32]) -> Vec<InlineText> {
    let mut texts = Vec::with_capacity(by_rank.len());
    on_huge_pages(&texts);
    texts.extend(by_rank.iter().map(|&t| {
        let term = stats.terms.get(t as usize);
        let mut bytes = [0; 15];
        if term.len() <= bytes.len() {
            bytes[..term.len()].copy_from_slice(term);
            let len = term.len() as u8;
            return InlineText { bytes, len };
        }
        bytes[..4].copy_from_slice(&t.to_le_bytes());
        InlineText { bytes, len: LONG }
    }));
    texts
}

/// Builds the look-up table. Terms are inserted by decreasing document frequency, rounded down to a power of two,
/// because terms that are inserted first are found fastest.
fn look_up_table(stats: &Stats, by_rank: &[u32], idf: &[f64]) -> Lookup {
    let mut lookup = Lookup::with_capacity(by_rank.len());
    let mut padded = stats.terms.bytes.clone();
    padded.extend_from_slice(&[0; PAD]);
    let at = |t: usize| stats.terms.offsets[t] as usize;
    let octave = |t: u32| stats.df[t as usize].leading_zeros();
    let mut octaves = [const { Vec::new() }; 64];
    for (rank, &t) in by_rank.iter().enumerate() {
        octaves[octave(t) as usize].push((rank, t as usize));
    }
    let order: Vec<(usize, usize)> = octaves.concat();
    let mut batch = Vec::new();
    for some in order.chunks(32) {
        batch.clear();
        batch.extend(some.iter().map(|&(rank, t)| {
            let (idf, rank) = (idf[t], rank as u32);
            let term = Term::new(&padded, at(t), at(t + 1));
            (term.key(), Known { idf, rank })
        }));
        lookup.insert_all(&batch);
    }
    lookup
}
