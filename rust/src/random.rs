//! Random numbers as functions of (seed, epoch, row, stream).

use fearless_simd::{Level, Simd, dispatch, prelude::*};
use fearless_simd_macros::simd;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::parallel::in_pool;

/// The stream from which `explain` draws sample replacements; `python/cse/rng.py` lists the other streams.
pub(crate) const EXPLAIN: u64 = u64::MAX;
/// Number of rows whose bits one thread computes at a time.
const PART: usize = 1 << 14;
/// Number of lanes of the widest supported vectors (AVX-512).
const MAX_LANES: usize = 16;

/// Returns the next number of `rng`, uniform in [0, 1).
pub(crate) fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    to_unit(rng.next_u64())
}

/// Converts the upper 53 of 64 random bits to a number in [0, 1).
pub fn to_unit(bits: u64) -> f64 {
    (bits >> 11) as i64 as f64 * (1.0 / (1u64 << 53) as f64)
}

/// Returns the ChaCha8 stream whose key consists of these four numbers.
pub(crate) fn keyed(seed: u64, epoch: u64, row: u64, stream: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, value) in key.chunks_exact_mut(8).zip([seed, epoch, row, stream]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Returns 64 random bits for each row. They are used for random choices such as shuffling, held-out rows and the
/// mixing partners of MixCSE, but not for negatives. Different values of `stream` give independent bits. Small values
/// of `stream` are reserved for negatives, which use their copy number as the stream.
pub fn random_bits(seed: u64, epoch: u64, rows: &[u64], stream: u64) -> Vec<u64> {
    let mut bits = vec![0; rows.len()];
    let level = Level::new();
    let fill = |(bits, rows): (&mut [u64], &[u64])| {
        dispatch!(level, simd => first_numbers(simd, [seed, epoch, stream], rows, bits));
    };
    if rows.len() < PART {
        fill((&mut bits, rows));
    } else {
        in_pool(|| {
            let parts = bits.par_chunks_mut(PART).zip(rows.par_chunks(PART));
            parts.for_each(fill);
        });
    }
    bits
}

/// Sets each element of `bits` to the first number of the [`keyed`] stream of its row.
///
/// `rand_chacha` computes four blocks of 64 bytes of one stream at once, but a single number needs only eight bytes.
/// Here, each vector lane computes the first block of a different row. The widest vectors of the processor are used;
/// they are detected at run time, because the compiler may assume only SSE2 on x86-64.
#[simd]
fn first_numbers<S: Simd>(simd: S, key: [u64; 3], rows: &[u64], bits: &mut [u64]) {
    let lanes = S::u32s::LEN;
    let (mut low, mut high) = ([0; MAX_LANES], [0; MAX_LANES]);
    let (low, high) = (&mut low[..lanes], &mut high[..lanes]);
    for (rows, bits) in rows.chunks(lanes).zip(bits.chunks_mut(lanes)) {
        for (lane, row) in rows.iter().enumerate() {
            low[lane] = *row as u32;
            high[lane] = (*row >> 32) as u32;
        }
        let row = [&*low, &*high].map(|half| S::u32s::from_slice(simd, half));
        let [first, second] = first_words(simd, key, row);
        first.store_slice(low);
        second.store_slice(high);
        for (lane, bits) in bits.iter_mut().enumerate() {
            *bits = u64::from(low[lane]) | u64::from(high[lane]) << 32;
        }
    }
}

/// Returns the first two words of the first ChaCha8 block of each row, with one row per lane.
#[simd]
fn first_words<S: Simd>(simd: S, key: [u64; 3], row: [S::u32s; 2]) -> [S::u32s; 2] {
    let all = |word: u32| S::u32s::splat(simd, word);
    let halves = |value: u64| [all(value as u32), all((value >> 32) as u32)];
    let [[s0, s1], [e0, e1], [t0, t1]] = key.map(halves);
    let [row0, row1] = row;
    // The initial state: the constant "expand 32-byte k", the key, and a counter and a nonce of 0.
    let [k0, k1, k2, k3] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574].map(all);
    let o = all(0);
    let mut s = [
        k0, k1, k2, k3, s0, s1, e0, e1, row0, row1, t0, t1, o, o, o, o,
    ];
    for _ in 0..4 {
        quarter_round(simd, &mut s, [0, 4, 8, 12]);
        quarter_round(simd, &mut s, [1, 5, 9, 13]);
        quarter_round(simd, &mut s, [2, 6, 10, 14]);
        quarter_round(simd, &mut s, [3, 7, 11, 15]);
        quarter_round(simd, &mut s, [0, 5, 10, 15]);
        quarter_round(simd, &mut s, [1, 6, 11, 12]);
        quarter_round(simd, &mut s, [2, 7, 8, 13]);
        quarter_round(simd, &mut s, [3, 4, 9, 14]);
    }
    [s[0] + k0, s[1] + k1]
}

/// Performs the quarter round of ChaCha in each lane.
#[simd]
fn quarter_round<S: Simd>(_: S, s: &mut [S::u32s; 16], [a, b, c, d]: [usize; 4]) {
    let rotated = |x: S::u32s, by: u32| (x << by) | (x >> (32 - by));
    s[a] += s[b];
    s[d] = rotated(s[d] ^ s[a], 16);
    s[c] += s[d];
    s[b] = rotated(s[b] ^ s[c], 12);
    s[a] += s[b];
    s[d] = rotated(s[d] ^ s[a], 8);
    s[c] += s[d];
    s[b] = rotated(s[b] ^ s[c], 7);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bits_equal_first_number_of_each_stream() {
        let rows: Vec<u64> = (0..2 * PART as u64 + 5)
            .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .collect();
        let (seed, epoch, stream) = (u64::MAX - 3, 1 << 40, (7 << 33) + 1);
        let expected: Vec<u64> = rows
            .iter()
            .map(|&row| keyed(seed, epoch, row, stream).next_u64())
            .collect();
        assert_eq!(random_bits(seed, epoch, &rows, stream), expected);
        assert_eq!(
            random_bits(seed, epoch, &rows[..19], stream),
            expected[..19]
        );
    }
}
