//! Random sampling: numbers as functions of (seed, epoch, row, stream), and ranks within the radius.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use wide::u32x8;

use crate::index::Index;
use crate::parallel::in_pool;

/// Number of rows from which on their bits are computed in parallel.
const IN_PARALLEL: usize = 1 << 14;
/// Rows whose bits are computed at once.
const LANES: usize = 8;

/// Returns the next number of `rng`, uniform in [0, 1).
pub(crate) fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    to_unit(rng.next_u64())
}

/// Converts the upper 53 bits to a number in [0, 1).
pub fn to_unit(bits: u64) -> f64 {
    float((bits >> 11) as usize) * (1.0 / (1u64 << 53) as f64)
}

/// Converts a number below 2^63. As a signed number this takes one instruction; as an unsigned one it would take six.
fn float(n: usize) -> f64 {
    n as i64 as f64
}

/// Returns the ChaCha8 stream whose key consists of these four numbers.
pub(crate) fn keyed(seed: u64, epoch: u64, row: u64, stream: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, value) in key.chunks_exact_mut(8).zip([seed, epoch, row, stream]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Returns 64 random bits for each row, from which all other random choices are made (shuffling, held-out rows, mixing
/// partners). Different values of `stream` give independent bits; negatives use the small ones.
pub fn random_bits(seed: u64, epoch: u64, rows: &[u64], stream: u64) -> Vec<u64> {
    let mut bits = vec![0; rows.len()];
    let fill = |(bits, rows): (&mut [u64], &[u64])| match rows.try_into() {
        Ok(rows) => bits.copy_from_slice(&first_numbers(seed, epoch, rows, stream)),
        Err(_) => {
            for (bits, &row) in bits.iter_mut().zip(rows) {
                *bits = keyed(seed, epoch, row, stream).next_u64();
            }
        }
    };
    if rows.len() < IN_PARALLEL {
        bits.chunks_mut(LANES)
            .zip(rows.chunks(LANES))
            .for_each(fill);
    } else {
        in_pool(|| {
            let pairs = bits.par_chunks_mut(LANES).zip(rows.par_chunks(LANES));
            pairs.with_min_len(IN_PARALLEL / LANES).for_each(fill);
        });
    }
    bits
}

/// Returns the first number of the stream [`keyed`] of each row.
///
/// The cipher computes four blocks of 64 bytes at once, of which a single number uses eight bytes. Here the rows take
/// the place of the blocks.
fn first_numbers(seed: u64, epoch: u64, rows: &[u64; LANES], stream: u64) -> [u64; LANES] {
    let halves = |value: u64| {
        [
            u32x8::splat(value as u32),
            u32x8::splat((value >> 32) as u32),
        ]
    };
    let [s0, s1] = halves(seed);
    let [e0, e1] = halves(epoch);
    let [t0, t1] = halves(stream);
    let row0 = u32x8::from(rows.map(|row| row as u32));
    let row1 = u32x8::from(rows.map(|row| (row >> 32) as u32));
    // "expand 32-byte k", then the key; the counter and the nonce are 0.
    let [k0, k1, k2, k3] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574].map(u32x8::splat);
    let o = u32x8::splat(0);
    let mut s = [
        k0, k1, k2, k3, s0, s1, e0, e1, row0, row1, t0, t1, o, o, o, o,
    ];
    for _ in 0..4 {
        quarter_round(&mut s, 0, 4, 8, 12);
        quarter_round(&mut s, 1, 5, 9, 13);
        quarter_round(&mut s, 2, 6, 10, 14);
        quarter_round(&mut s, 3, 7, 11, 15);
        quarter_round(&mut s, 0, 5, 10, 15);
        quarter_round(&mut s, 1, 6, 11, 12);
        quarter_round(&mut s, 2, 7, 8, 13);
        quarter_round(&mut s, 3, 4, 9, 14);
    }
    let (low, high) = ((s[0] + k0).to_array(), (s[1] + k1).to_array());
    std::array::from_fn(|lane| u64::from(low[lane]) | u64::from(high[lane]) << 32)
}

/// The quarter round of ChaCha in each lane.
#[inline(always)]
fn quarter_round(s: &mut [u32x8; 16], a: usize, b: usize, c: usize, d: usize) {
    s[a] += s[b];
    s[d] = rotated::<16>(s[d] ^ s[a]);
    s[c] += s[d];
    s[b] = rotated::<12>(s[b] ^ s[c]);
    s[a] += s[b];
    s[d] = rotated::<8>(s[d] ^ s[a]);
    s[c] += s[d];
    s[b] = rotated::<7>(s[b] ^ s[c]);
}

#[inline(always)]
fn rotated<const BY: u32>(x: u32x8) -> u32x8 {
    (x << BY) | (x >> (32 - BY))
}

/// Draws a rank from `rank - radius ..= rank + radius`, never `rank` itself, with probability proportional to the maximum
/// score.
///
/// An unseen word (`seen` is false) is between two ranks and has `radius` ranks to either side. `u` is uniform in [0, 1).
/// Returns `None` if there is no other term.
pub fn draw(index: &Index, rank: usize, seen: bool, radius: usize, u: f64) -> Option<usize> {
    let mut search = RankSearch::within_radius(index, rank, seen, radius, u)?;
    search.improve_guess(index);
    Some(search.finish(index))
}

/// A search in the prefix sums for the last rank in `from..to` whose interval begins at or before `target`.
///
/// It has three steps: a first guess, one correction of the guess, and the search from there. Each step waits for memory;
/// a caller with many words does each step for all words, so that the waits overlap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RankSearch {
    from: usize,
    to: usize,
    target: f64,
    guess: usize,
}

impl RankSearch {
    /// A search whose result is known.
    fn finished(rank: usize) -> Self {
        RankSearch {
            from: rank,
            to: rank + 1,
            target: f64::INFINITY,
            guess: rank,
        }
    }

    /// Returns the rank of `from..to` nearest to `position`; `from` if that is not a number (an empty side that was chosen
    /// because of rounding).
    fn clamp(&self, position: f64) -> usize {
        (position as i64).clamp(self.from as i64, self.to as i64 - 1) as usize
    }

    /// First step of [`draw`]: selects a side of the word's own interval and makes a guess on it.
    ///
    /// Neighbours in rank have nearly the same weight, so linear interpolation between the ends is off by a few ranks
    /// only. A binary search would touch a dozen cache lines instead of two or three.
    pub(crate) fn within_radius(
        index: &Index,
        rank: usize,
        seen: bool,
        radius: usize,
        u: f64,
    ) -> Option<Self> {
        let after = rank + usize::from(seen);
        let low = rank.saturating_sub(radius);
        let high = after.saturating_add(radius).min(index.len());
        let (left_count, right_count) = (rank - low, high - after);
        if left_count + right_count == 0 {
            return None;
        }
        let [p_low, p_rank, p_after, p_high] =
            [low, rank, after, high].map(|rank| index.prefix[rank]);
        let (left, right) = (p_rank - p_low, p_high - p_after);
        let mass = left + right;
        if mass <= 0.0 {
            // All scores are 0: draw uniformly.
            let k = (u * (left_count + right_count) as f64) as usize;
            let rank = if k < left_count {
                low + k
            } else {
                (after + k - left_count).min(high - 1)
            };
            return Some(RankSearch::finished(rank));
        }
        let at = u * mass;
        let (from, to, base, side, at) = if (at < left || right_count == 0) && left_count > 0 {
            (low, rank, p_low, left, at)
        } else {
            (after, high, p_after, right, (at - left).max(0.0))
        };
        let mut search = RankSearch {
            from,
            to,
            target: base + at,
            guess: from,
        };
        search.guess = search.clamp(float(from) + at / side * float(to - from));
        Some(search)
    }

    /// First step of a uniform draw from all ranks but `rank`.
    pub(crate) fn anywhere(index: &Index, rank: usize, seen: bool, u: f64) -> Option<Self> {
        let others = index.len() - usize::from(seen);
        let k = ((u * others as f64) as usize).min(others.checked_sub(1)?);
        Some(RankSearch::finished(k + usize::from(seen && k >= rank)))
    }

    /// Second step: corrects the guess by the slope at that rank.
    pub(crate) fn improve_guess(&mut self, index: &Index) {
        let before = index.prefix[self.guess];
        let own = index.prefix[self.guess + 1] - before;
        if own > 0.0 {
            self.guess = self.clamp(float(self.guess) + (self.target - before) / own);
        }
    }

    /// Third step: searches from the guess and returns the rank.
    pub(crate) fn finish(&self, index: &Index) -> usize {
        let RankSearch {
            from,
            to,
            target,
            guess,
        } = *self;
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
        // The guess can be far off among the terms with the largest scores.
        from + prefix[from + 1..to].partition_point(|&sum| sum <= target)
    }
}
