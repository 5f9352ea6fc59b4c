//! Keeps only the terms of an index that are frequent enough (`--min-df`), and limits their number (`--max-terms`).

use crate::error::{Error, Result};
use crate::index::stats::Stats;

/// A selection of the vocabulary, made when an index is opened. The stored index keeps all terms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VocabularyFilter {
    /// Keep only terms that occur in at least this many documents.
    pub min_df: u64,
    /// Of these terms, keep at most this many: those with the highest document frequencies. Among terms of equal
    /// frequency, the first in byte order are kept.
    pub max_terms: Option<usize>,
}

impl VocabularyFilter {
    /// Whether the filter keeps all terms.
    pub fn keeps_all(&self) -> bool {
        self.min_df <= 1 && self.max_terms.is_none()
    }

    /// Returns the numbers of the terms that are kept, in ascending order, or an error if no term is kept.
    pub(crate) fn kept(&self, stats: &Stats) -> Result<Vec<u32>> {
        let mut kept: Vec<u32> = (0..stats.df.len() as u32).filter(|&t| stats.df[t as usize] >= self.min_df).collect();
        if let Some(most) = self.max_terms.filter(|&most| most < kept.len()) {
            kept.sort_by_key(|&t| (std::cmp::Reverse(stats.df[t as usize]), t));
            kept.truncate(most);
            kept.sort_unstable();
        }
        if kept.is_empty() {
            let why = format!("none of the {} terms is left; lower --min-df or raise --max-terms", stats.df.len());
            return Err(Error::invalid("--min-df, --max-terms", why));
        }
        Ok(kept)
    }
}
