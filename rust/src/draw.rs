//! Drawing: random numbers as functions of (seed, epoch, row, stream), and a rank within the radius.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::index::Index;

/// Uniform in [0, 1).
pub(crate) fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    to_unit(rng.next_u64())
}

/// The upper 53 bits as a number in [0, 1).
pub fn to_unit(bits: u64) -> f64 {
    float((bits >> 11) as usize) * (1.0 / (1u64 << 53) as f64)
}

/// A number below 2^63 in one instruction: an unsigned one would take six.
fn float(n: usize) -> f64 {
    n as i64 as f64
}

/// The ChaCha8 stream whose key is these four numbers.
pub(crate) fn keyed(seed: u64, epoch: u64, row: u64, stream: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, value) in key.chunks_exact_mut(8).zip([seed, epoch, row, stream]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// 64 random bits for each row: the source of every other random choice (shuffling, held-out rows, mixing
/// partners). `stream` keeps them apart from each other and from the negatives, which use small numbers.
pub fn random_bits(seed: u64, epoch: u64, rows: &[u64], stream: u64) -> Vec<u64> {
    rows.iter()
        .map(|&row| keyed(seed, epoch, row, stream).next_u64())
        .collect()
}

/// A search in the prefix sums: the last rank of `from..to` whose interval begins at or before `target`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Aim {
    from: usize,
    to: usize,
    target: f64,
    guess: usize,
}

impl Aim {
    fn at(place: usize) -> Self {
        Aim {
            from: place,
            to: place + 1,
            target: f64::INFINITY,
            guess: place,
        }
    }

    /// The nearest place of `from..to`; `from` for what is no number (an empty side, reached by rounding).
    fn clamp(&self, place: f64) -> usize {
        (place as i64).clamp(self.from as i64, self.to as i64 - 1) as usize
    }
}

impl Index {
    /// Draws a rank from `rank - r ..= rank + r` with probability proportional to the maximum score, never `rank`
    /// itself; an unseen word (`seen` false) stands between ranks and has r to either side. `u` is uniform in
    /// [0, 1). None if there is no other term.
    pub fn draw(&self, rank: usize, seen: bool, radius: usize, u: f64) -> Option<usize> {
        let mut aim = self.aim(rank, seen, radius, u)?;
        self.refine(&mut aim);
        Some(self.hit(&aim))
    }

    /// The draw's first third: which side of the word's own interval is meant, and a guess where on it.
    ///
    /// Neighbours in rank weigh nearly the same, so a straight line from end to end is a guess that is a few places
    /// off; `refine` corrects it by the slope there, and `hit` walks the rest. A binary search touches a dozen cache
    /// lines instead of two or three.
    pub(crate) fn aim(&self, rank: usize, seen: bool, radius: usize, u: f64) -> Option<Aim> {
        let after = rank + usize::from(seen);
        let low = rank.saturating_sub(radius);
        let high = after.saturating_add(radius).min(self.len());
        let (left_count, right_count) = (rank - low, high - after);
        if left_count + right_count == 0 {
            return None;
        }
        let [p_low, p_rank, p_after, p_high] =
            [low, rank, after, high].map(|place| self.prefix[place]);
        let (left, right) = (p_rank - p_low, p_high - p_after);
        let mass = left + right;
        if mass <= 0.0 {
            // No mass to follow: uniform over the window, told as a search that has ended.
            let k = (u * (left_count + right_count) as f64) as usize;
            let place = if k < left_count {
                low + k
            } else {
                (after + k - left_count).min(high - 1)
            };
            return Some(Aim::at(place));
        }
        let at = u * mass;
        let (from, to, base, side, at) = if (at < left || right_count == 0) && left_count > 0 {
            (low, rank, p_low, left, at)
        } else {
            (after, high, p_after, right, (at - left).max(0.0))
        };
        let mut aim = Aim {
            from,
            to,
            target: base + at,
            guess: from,
        };
        aim.guess = aim.clamp(float(from) + at / side * float(to - from));
        Some(aim)
    }

    /// Any rank but the word's own, evenly; told as a search that has ended.
    pub(crate) fn aim_anywhere(&self, rank: usize, seen: bool, u: f64) -> Option<Aim> {
        let others = self.len() - usize::from(seen);
        let k = ((u * others as f64) as usize).min(others.checked_sub(1)?);
        Some(Aim::at(k + usize::from(seen && k >= rank)))
    }

    /// The second third: one step by the slope at the guess.
    pub(crate) fn refine(&self, aim: &mut Aim) {
        let before = self.prefix[aim.guess];
        let own = self.prefix[aim.guess + 1] - before;
        if own > 0.0 {
            aim.guess = aim.clamp(float(aim.guess) + (aim.target - before) / own);
        }
    }

    /// The last third: from the guess to the very place.
    pub(crate) fn hit(&self, aim: &Aim) -> usize {
        let Aim {
            from,
            to,
            target,
            guess,
        } = *aim;
        let prefix = &self.prefix[..=to];
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
        // Steep places: the heaviest terms of all.
        from + prefix[from + 1..to].partition_point(|&sum| sum <= target)
    }
}
