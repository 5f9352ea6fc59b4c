//! Random numbers as functions of (seed, epoch, row, stream).

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use wide::u32x8;

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
/// the place of the blocks, by the crate `wide`: the compiler does not compute a loop over arrays in vectors.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_the_first_numbers_of_the_streams() {
        let rows: Vec<u64> = (0..2 * IN_PARALLEL as u64 + 5)
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
