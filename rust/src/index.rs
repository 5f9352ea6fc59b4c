//! The statistics, opened: idf, maximum scores, ranks, prefix sums and the look-up table.

use rayon::prelude::*;

use crate::corpus::FileRecord;
use crate::error::{Error, Result};
use crate::lookup::{Known, Lookup, on_huge_pages};
use crate::matrix::{idf, tf};
use crate::stats::Stats;
use crate::table::{Key, PAD, Term, TermTable};
use crate::tokenize::Tokenizer;

/// A part of the vocabulary, chosen when an index is opened; what is stored stays whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Only terms in at least so many documents.
    pub min_df: u64,
    /// Of those only the most frequent by df, equal ones in byte order.
    pub max_terms: Option<usize>,
}

impl View {
    pub fn is_whole(&self) -> bool {
        self.min_df <= 1 && self.max_terms.is_none()
    }

    /// The numbers of the terms that stay, ascending.
    fn kept(&self, stats: &Stats) -> Result<Vec<u32>> {
        let mut kept: Vec<u32> = (0..stats.df.len() as u32)
            .filter(|&t| stats.df[t as usize] >= self.min_df)
            .collect();
        if let Some(most) = self.max_terms.filter(|&most| most < kept.len()) {
            kept.sort_by_key(|&t| (std::cmp::Reverse(stats.df[t as usize]), t));
            kept.truncate(most);
            kept.sort_unstable();
        }
        if kept.is_empty() {
            let why = format!(
                "no term is left of {}; lower --min-df or raise --max-terms",
                stats.df.len()
            );
            return Err(Error::invalid("--min-df, --max-terms", why));
        }
        Ok(kept)
    }
}

/// A corpus' statistics with everything UNA asks of them.
///
/// Terms are numbered in byte order. Their rank is their place by maximum score, the largest first, equal
/// scores in byte order.
#[derive(Debug)]
pub struct Index {
    pub tokenizer: Tokenizer,
    pub files: Vec<FileRecord>,
    pub stats: Stats,
    /// `idf[t] = ln(N/df[t])`.
    pub idf: Vec<f64>,
    /// `max_score[t]` = max over documents of `ln(1 + c/L) * idf[t]`.
    pub max_score: Vec<f64>,
    /// rank -> term.
    pub by_rank: Vec<u32>,
    /// `prefix[k]`: sum of the k largest maximum scores.
    pub prefix: Vec<f64>,
    /// rank -> text, side by side for neighbours in rank.
    surfaces: Vec<Surface>,
    pub(crate) lookup: Lookup,
    /// idf of the terms that the view leaves out.
    outside: TermTable<f64>,
    view: View,
}

/// A term's text by rank: up to fifteen bytes inline, so that writing it out costs one load, not three.
#[derive(Clone, Copy, Debug)]
struct Surface {
    bytes: [u8; 15],
    /// `LONG` for a longer one: then `bytes` begin with its number.
    len: u8,
}

const LONG: u8 = u8::MAX;

impl Index {
    /// Derives all that is not stored.
    pub fn new(tokenizer: Tokenizer, files: Vec<FileRecord>, stats: Stats) -> Self {
        let n = stats.counts.documents;
        let idf: Vec<f64> = stats.df.par_iter().map(|&df| idf(n, df)).collect();
        let max_score: Vec<f64> = idf
            .par_iter()
            .zip(&stats.max_tf)
            .map(|(idf, max_tf)| max_tf.ln_1p() * idf)
            .collect();
        // Scores are not negative, so their bits order as they do; `!` turns the order round.
        let mut order: Vec<(u64, u32)> = max_score
            .par_iter()
            .enumerate()
            .map(|(t, score)| (!score.to_bits(), t as u32))
            .collect();
        order.par_sort_unstable();
        let by_rank: Vec<u32> = order.into_iter().map(|(_, t)| t).collect();
        let (lookup, (prefix, surfaces)) = rayon::join(
            || look_up_table(&stats, &by_rank, &idf),
            || {
                (
                    prefix_sums(&by_rank, &max_score),
                    surfaces(&stats, &by_rank),
                )
            },
        );
        Index {
            tokenizer,
            files,
            stats,
            idf,
            max_score,
            by_rank,
            prefix,
            surfaces,
            lookup,
            outside: TermTable::with_capacity(0),
            view: View::default(),
        }
    }

    /// The index that sees only a part of the vocabulary. N, and the length of a document, stay what they were.
    pub fn with_view(
        tokenizer: Tokenizer,
        files: Vec<FileRecord>,
        stats: Stats,
        view: View,
    ) -> Result<Self> {
        if view.is_whole() {
            return Ok(Index::new(tokenizer, files, stats));
        }
        let kept = view.kept(&stats)?;
        let mut outside = TermTable::with_capacity(stats.df.len() - kept.len());
        let mut next = kept.iter().peekable();
        for t in 0..stats.df.len() {
            if next.next_if(|&&kept| kept as usize == t).is_none() {
                let mut padded = stats.terms.get(t).to_vec();
                padded.extend_from_slice(&[0; PAD]);
                let term = Term::new(&padded, 0, padded.len() - PAD);
                outside.intern(&term, || idf(stats.counts.documents, stats.df[t]));
            }
        }
        let index = Index::new(tokenizer, files, stats.only(&kept));
        Ok(Index {
            outside,
            view,
            ..index
        })
    }

    /// Whether all terms of the statistics can be seen.
    pub fn is_whole(&self) -> bool {
        self.view.is_whole()
    }

    /// The text of the term of this rank, as UTF-8.
    #[inline]
    pub fn bytes_at(&self, rank: usize) -> &[u8] {
        let Surface { bytes, len } = &self.surfaces[rank];
        if *len == LONG {
            let t = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            return self.stats.terms.get(t as usize);
        }
        &bytes[..usize::from(*len)]
    }

    /// Appends that text: a short one by a move of fixed size, which costs less than the call to copy a few bytes.
    #[inline]
    pub(crate) fn push_term(&self, rank: usize, out: &mut Vec<u8>) {
        let Surface { bytes, len } = &self.surfaces[rank];
        if *len == LONG {
            out.extend_from_slice(self.bytes_at(rank));
        } else {
            let end = out.len() + usize::from(*len);
            out.extend_from_slice(bytes);
            out.truncate(end);
        }
    }

    /// What the index knows of a term, by its key and, if that is not all of it, its bytes.
    pub(crate) fn find(&self, key: &Key, bytes: &[u8]) -> Option<Known> {
        self.lookup
            .find(key, |rank| self.bytes_at(rank as usize) == bytes)
    }

    /// The number of the term of this rank.
    pub fn term_at(&self, rank: usize) -> usize {
        self.by_rank[rank] as usize
    }

    /// V, the number of terms.
    pub fn len(&self) -> usize {
        self.by_rank.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_rank.is_empty()
    }

    /// The text of term `t`.
    pub fn term(&self, t: usize) -> &str {
        std::str::from_utf8(self.stats.terms.get(t)).expect("checked when the index was opened")
    }

    /// idf of a word that has no rank: its own if a view leaves it out; that of one document if it was never seen.
    pub(crate) fn idf_outside(&self, term: &Term) -> f64 {
        let known = self.outside.get(term).copied();
        known.unwrap_or_else(|| idf(self.stats.counts.documents, 1))
    }

    /// The rank a word of this score would take: how many terms have a larger maximum score.
    pub fn rank_of_score(&self, score: f64) -> usize {
        self.by_rank
            .partition_point(|&t| self.max_score[t as usize] > score)
    }

    /// r where none is given: 4,000 terms as published, or a hundredth of a smaller vocabulary, since 4,000 of
    /// 20,000 terms are not "of like weight".
    pub fn default_radius(&self) -> usize {
        (self.len() / 100).clamp(1, 4000)
    }

    /// The score of a term that stands `count` times among `length`.
    pub fn score(&self, idf: f64, count: u32, length: u32) -> f64 {
        tf(count, length) * idf
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

fn surfaces(stats: &Stats, by_rank: &[u32]) -> Vec<Surface> {
    let mut surfaces = Vec::with_capacity(by_rank.len());
    on_huge_pages(&surfaces);
    surfaces.extend(by_rank.iter().map(|&t| {
        let term = stats.terms.get(t as usize);
        let mut bytes = [0; 15];
        if term.len() <= bytes.len() {
            bytes[..term.len()].copy_from_slice(term);
            let len = term.len() as u8;
            return Surface { bytes, len };
        }
        bytes[..4].copy_from_slice(&t.to_le_bytes());
        Surface { bytes, len: LONG }
    }));
    surfaces
}

/// The most frequent terms first, by powers of two: what is added first is found fastest.
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
