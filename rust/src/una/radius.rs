//! The default radius, and the sampling of ranks within a radius. Terms are ranked by maximum score, largest first.

use crate::index::Index;

/// Returns the default radius: a hundredth of the vocabulary size, but at least 1 and at most 4,000 (the published
/// radius). In a small vocabulary of, say, 20,000 terms, terms that are 4,000 ranks apart do not have similar scores.
pub fn default_radius(index: &Index) -> usize {
    (index.len() / 100).clamp(1, 4000)
}

/// Converts a number below 2^63 to floating point. Converting a signed number takes one instruction, while converting
/// an unsigned number takes six.
fn float(n: usize) -> f64 {
    n as i64 as f64
}

/// Draws a rank from `rank - radius ..= rank + radius`, never `rank` itself, with probability proportional to the
/// maximum score. The word and the drawn term are of the same `class`.
///
/// A word that is not in the index (`seen` is false) lies between `rank - 1` and `rank`, with `radius` ranks on either
/// side. `u` is uniform in [0, 1). Returns `None` if there is no other term.
pub fn draw(index: &Index, rank: usize, seen: bool, class: usize, radius: usize, u: f64) -> Option<usize> {
    let mut search = RankSearch::within_radius(index, rank, seen, class, radius, u)?;
    search.improve_guess(index);
    Some(search.finish(index))
}

/// A search for the last rank k in `from..to` with `prefix[k] <= target`, where `prefix` is [`Index::prefix`].
///
/// The search has three steps: a first guess, one correction of the guess, and a linear search from there. Each step
/// waits for memory; a caller with many words does each step for all words, so that the waits overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankSearch {
    from: usize,
    to: usize,
    target: f64,
    guess: usize,
}

impl RankSearch {
    /// Returns a search whose result is already known.
    fn finished(rank: usize) -> Self {
        RankSearch { from: rank, to: rank + 1, target: f64::INFINITY, guess: rank }
    }

    /// Returns the rank in `from..to` nearest to `position`. The position is NaN if rounding has selected a side on
    /// which all scores are 0; the result is then `from`.
    fn clamp(&self, position: f64) -> usize {
        (position as i64).clamp(self.from as i64, self.to as i64 - 1) as usize
    }

    /// First step of [`draw`]: selects a side (lower or higher ranks) of the word and guesses a rank on that side.
    ///
    /// Neighbours in rank have nearly the same score, so the guess, a linear interpolation between the ends of the
    /// side, is off by only a few ranks. A binary search would touch a dozen cache lines instead of two or three.
    pub(crate) fn within_radius(
        index: &Index,
        rank: usize,
        seen: bool,
        class: usize,
        radius: usize,
        u: f64,
    ) -> Option<Self> {
        let ranks = index.ranks_of_class(class);
        let after = rank + usize::from(seen);
        let low = rank.saturating_sub(radius).max(ranks.start);
        let high = after.saturating_add(radius).min(ranks.end);
        let (left_count, right_count) = (rank - low, high - after);
        if left_count + right_count == 0 {
            return None;
        }
        let [p_low, p_rank, p_after, p_high] = [low, rank, after, high].map(|rank| index.prefix[rank]);
        let (left, right) = (p_rank - p_low, p_high - p_after);
        let mass = left + right;
        if mass <= 0.0 {
            // All scores are 0: draw uniformly.
            let k = (u * (left_count + right_count) as f64) as usize;
            let rank = if k < left_count { low + k } else { (after + k - left_count).min(high - 1) };
            return Some(RankSearch::finished(rank));
        }
        let at = u * mass;
        let (from, to, base, side, at) = if (at < left || right_count == 0) && left_count > 0 {
            (low, rank, p_low, left, at)
        } else {
            (after, high, p_after, right, (at - left).max(0.0))
        };
        let mut search = RankSearch { from, to, target: base + at, guess: from };
        search.guess = search.clamp(float(from) + at / side * float(to - from));
        Some(search)
    }

    /// First step of a uniform draw from all ranks of the class except `rank`.
    pub(crate) fn anywhere(index: &Index, rank: usize, seen: bool, class: usize, u: f64) -> Option<Self> {
        let ranks = index.ranks_of_class(class);
        let others = ranks.len() - usize::from(seen);
        let k = ranks.start + ((u * others as f64) as usize).min(others.checked_sub(1)?);
        Some(RankSearch::finished(k + usize::from(seen && k >= rank)))
    }

    /// Second step: corrects the guess by linear extrapolation with the score at the guessed rank.
    pub(crate) fn improve_guess(&mut self, index: &Index) {
        let before = index.prefix[self.guess];
        let score = index.prefix[self.guess + 1] - before;
        if score > 0.0 {
            self.guess = self.clamp(float(self.guess) + (self.target - before) / score);
        }
    }

    /// Third step: searches from the guess, and returns the rank that is found.
    pub(crate) fn finish(&self, index: &Index) -> usize {
        let RankSearch { from, to, target, guess } = *self;
        let prefix = &index.prefix[..=to];
        let mut found = guess;
        for _ in 0..16 {
            if prefix[found] > target && found > from {
                found -= 1;
            } else if found + 1 < to && prefix[found + 1] <= target {
                found += 1;
            } else {
                return found;
            }
        }
        // The guess can be far off among the terms with the largest scores; a binary search then finds the rank.
        from + prefix[from + 1..to].partition_point(|&sum| sum <= target)
    }
}
