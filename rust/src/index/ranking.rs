//! The rank of a term: its position by maximum score, largest first. Terms with equal scores are in byte order.

use rayon::prelude::*;

use crate::index::Index;

/// Returns the term id of each rank. Term ids follow byte order; `max_score` holds the score of each term.
pub(crate) fn terms_by_score(max_score: &[f64]) -> Vec<u32> {
    // Scores are not negative, so their bit patterns have the same order as the scores; `!` reverses the order.
    let mut order: Vec<(u64, u32)> = max_score
        .par_iter()
        .enumerate()
        .map(|(t, score)| (!score.to_bits(), t as u32))
        .collect();
    order.par_sort_unstable();
    order.into_iter().map(|(_, t)| t).collect()
}

impl Index {
    /// Returns the rank that a word with this score would have: the number of terms with a larger maximum score.
    pub fn rank_of_score(&self, score: f64) -> usize {
        self.by_rank
            .partition_point(|&t| self.max_score[t as usize] > score)
    }
}
