//! The rank of a term: its position by maximum score, largest first. Terms with equal scores are in byte order. If terms
//! have classes ([`Tokenizer::class`](crate::Tokenizer::class)), all terms of class 0 come first, then those of class 1,
//! and so on.

use rayon::prelude::*;

use crate::text::wordpieces::CLASSES;

/// Returns the term id of each rank, and for each class the first rank, followed by the number of terms. Term ids follow
/// byte order; `max_score` holds the score of each term, and `class` returns its class.
pub(crate) fn terms_by_rank(max_score: &[f64], class: impl Fn(usize) -> usize) -> (Vec<u32>, [usize; CLASSES + 1]) {
    let terms = terms_by_score(max_score);
    let mut by_class = [const { Vec::new() }; CLASSES];
    for t in terms {
        by_class[class(t as usize)].push(t);
    }
    let mut first = [0; CLASSES + 1];
    for (k, terms) in by_class.iter().enumerate() {
        first[k + 1] = first[k] + terms.len();
    }
    (by_class.concat(), first)
}

/// Returns the term ids by maximum score, largest first.
fn terms_by_score(max_score: &[f64]) -> Vec<u32> {
    // Scores are not negative, so their bit patterns have the same order as the scores; `!` reverses the order.
    let mut order: Vec<(u64, u32)> =
        max_score.par_iter().enumerate().map(|(t, score)| (!score.to_bits(), t as u32)).collect();
    order.par_sort_unstable();
    order.into_iter().map(|(_, t)| t).collect()
}
