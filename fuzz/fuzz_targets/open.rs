//! Fuzz target: opening arbitrary bytes as an index file either returns an error or gives an index that can generate
//! negatives.
//!
//! The checksum rejects nearly all arbitrary bytes. About half of the inputs are therefore turned into an index file
//! with arbitrary statistics and a correct checksum, as a malicious or faulty program could write it. The other
//! inputs are opened as they are.
//!
//! With `RUSTC_BOOTSTRAP=1`, the stable compiler accepts the unstable options that cargo-fuzz needs:
//!
//! ```sh
//! cargo install cargo-fuzz
//! RUSTC_BOOTSTRAP=1 cargo fuzz run open -- -max_total_time=600
//! RUSTC_BOOTSTRAP=1 cargo fuzz run tokenize -- -max_total_time=600
//! ```

#![no_main]

use std::path::Path;

use cse_core::index::stats::{Counts, Stats, Terms};
use cse_core::index::store;
use cse_core::{Augmenter, Options, Tokenizer, VocabularyFilter};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((kind, data)) = data.split_first() else {
        return;
    };
    if kind % 2 == 0 {
        open(data);
    } else if let Ok(bytes) = store::serialize(Tokenizer::UNICODE, &[], &stats(data)) {
        open(&bytes);
    }
});

/// Returns statistics with arbitrary values: half of `data` is read as eight-byte numbers, the rest as text.
fn stats(data: &[u8]) -> Stats {
    let (numbers, rest) = data.as_chunks::<8>();
    let (numbers, text) = numbers.split_at(numbers.len() / 2);
    let number = |n: &[u8; 8]| u64::from_le_bytes(*n);
    let third = numbers.len() / 3;
    let bytes = [text.as_flattened(), rest].concat();
    Stats {
        counts: Counts {
            documents: numbers.first().map_or(0, number),
            ..Counts::default()
        },
        terms: Terms {
            offsets: numbers[..third]
                .iter()
                .map(|n| number(n) % (bytes.len() as u64 + 2))
                .collect(),
            bytes,
        },
        df: numbers[third..2 * third].iter().map(number).collect(),
        max_frequency: numbers[2 * third..]
            .iter()
            .map(|n| f64::from_bits(number(n)))
            .collect(),
    }
}

fn open(bytes: &[u8]) {
    let Ok(stored) = store::deserialize(bytes, Path::new("fuzz")) else {
        return;
    };
    let Ok(index) = stored.into_index(VocabularyFilter::default()) else {
        return;
    };
    let mut augmenter = Augmenter::new(&index, Options::new(&index));
    let mut out = Vec::new();
    let ends = [0, index.len().saturating_sub(1)].map(|t| match index.is_empty() {
        true => "nothing",
        false => index.term(t),
    });
    for row in 0..4 {
        let text = format!("{} and {} it", ends[0], ends[1]);
        augmenter.augment(&text, row, &mut out);
    }
    std::str::from_utf8(&out).expect("a negative is UTF-8");
}
