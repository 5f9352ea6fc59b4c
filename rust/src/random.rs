//! Random numbers as functions of (seed, epoch, row, stream).

use fearless_simd::{Level, Simd, dispatch, prelude::*};
use fearless_simd_macros::simd;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::parallel::in_pool;

/// The stream from which `explain` draws sample replacements; `python/cse/rng.py` lists the other streams.
pub(crate) const EXPLAIN: u64 = u64::MAX;
/// The stream of dropout masks.
const DROPOUT: u64 = u64::MAX - 1;
/// Number of rows whose bits one thread computes at a time.
const PART: usize = 1 << 14;
/// Number of lanes of the widest supported vectors (AVX-512).
const MAX_LANES: usize = 16;
/// Number of words of a ChaCha block.
const WORDS: usize = 16;
/// Number of elements of a dropout mask that are computed at once: two for each word of `MAX_LANES` blocks.
const MASK_BLOCK: usize = 2 * WORDS * MAX_LANES;
/// Number of blocks of a dropout mask that one thread computes at a time.
const MASK_PART: usize = 128;

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
        let [first, second, ..] = first_block(simd, key, row);
        first.store_slice(low);
        second.store_slice(high);
        for (lane, bits) in bits.iter_mut().enumerate() {
            *bits = u64::from(low[lane]) | u64::from(high[lane]) << 32;
        }
    }
}

/// Sets each element of a dropout mask of N-byte numbers to `kept` or, with probability `dropped` / 2^16, to 0.
///
/// Each element takes 16 bits of the first block of a [`keyed`] stream, whose row is the number of the block. The mask is
/// a function of the seed only: it depends neither on the number of threads nor on the width of vectors.
pub fn dropout_mask<const N: usize>(seed: u64, dropped: u32, kept: [u8; N], mask: &mut [[u8; N]]) {
    let level = Level::new();
    let fill = |(part, mask): (usize, &mut [[u8; N]])| {
        let first = (part * MASK_PART) as u64;
        dispatch!(level, simd => mask_blocks(simd, seed, first, dropped, kept, mask));
    };
    let size = MASK_PART * MASK_BLOCK;
    if mask.len() <= size {
        fill((0, mask));
    } else {
        in_pool(|| mask.par_chunks_mut(size).enumerate().for_each(fill));
    }
}

/// Computes the part of a dropout mask that begins with block number `first`.
#[simd]
fn mask_blocks<S: Simd, const N: usize>(
    simd: S,
    seed: u64,
    first: u64,
    dropped: u32,
    kept: [u8; N],
    mask: &mut [[u8; N]],
) {
    let lanes = S::u32s::LEN;
    let mut words = [0; MASK_BLOCK / 2];
    let (mut low, mut high) = ([0; MAX_LANES], [0; MAX_LANES]);
    for (mask, number) in mask.chunks_mut(MASK_BLOCK).zip(first..) {
        // Word w of the block of lane l is stored at 16 w + l, whatever the number of lanes of a vector.
        for start in (0..MAX_LANES).step_by(lanes) {
            let row = number * MAX_LANES as u64 + start as u64;
            for (lane, (low, high)) in low.iter_mut().zip(&mut high).enumerate() {
                let row = row + lane as u64;
                *low = row as u32;
                *high = (row >> 32) as u32;
            }
            let row = [&low, &high].map(|half| S::u32s::from_slice(simd, &half[..lanes]));
            let block = first_block(simd, [seed, 0, DROPOUT], row);
            for (word, words) in block.iter().zip(words.chunks_mut(MAX_LANES)) {
                word.store_slice(&mut words[start..start + lanes]);
            }
        }
        let chosen = |bits: u32| if bits >= dropped { kept } else { [0; N] };
        let (pairs, last) = mask.as_chunks_mut::<2>();
        for (pair, word) in pairs.iter_mut().zip(&words) {
            *pair = [chosen(word & 0xffff), chosen(word >> 16)];
        }
        if let [last] = last {
            *last = chosen(words[pairs.len()] & 0xffff);
        }
    }
}

/// Returns the first ChaCha8 block of each row, with one row per lane.
#[simd]
fn first_block<S: Simd>(simd: S, key: [u64; 3], row: [S::u32s; 2]) -> [S::u32s; WORDS] {
    let all = |word: u32| S::u32s::splat(simd, word);
    let halves = |value: u64| [all(value as u32), all((value >> 32) as u32)];
    let [[s0, s1], [e0, e1], [t0, t1]] = key.map(halves);
    let [row0, row1] = row;
    // The initial state: the constant "expand 32-byte k", the key, and a counter and a nonce of 0.
    let [k0, k1, k2, k3] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574].map(all);
    let o = all(0);
    let initial = [k0, k1, k2, k3, s0, s1, e0, e1, row0, row1, t0, t1, o, o, o, o];
    let mut s = initial;
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
    for (word, initial) in s.iter_mut().zip(initial) {
        *word += initial;
    }
    s
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
