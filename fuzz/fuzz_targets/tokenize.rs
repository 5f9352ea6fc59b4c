//! Fuzz target: for arbitrary text and every tokenizer, the fast paths agree with the reference implementation, spans
//! are in order and at character boundaries, and counting and augmenting the text do not panic. `open.rs` documents how
//! to run this target.

#![no_main]

use cse_core::index::stats::Counter;
use cse_core::text::tokenize::{Rule, Scratch};
use cse_core::{Augmenter, Index, Options, Tokenizer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((flags, data)) = data.split_first() else {
        return;
    };
    let text = String::from_utf8_lossy(data);
    let rule = [Rule::Unicode, Rule::Whitespace, Rule::Treebank][(flags % 3) as usize];
    let tokenizer = Tokenizer {
        rule,
        lowercase: flags & 64 == 0,
        nfkc: flags & 128 != 0,
        pieces: 0,
    };
    let mut scratch = Scratch::default();
    let (mut fast, mut slow) = (Vec::new(), Vec::new());
    tokenizer.for_each(&text, &mut scratch, |start, end, term| {
        fast.push((start, end, term.bytes().to_vec()));
    });
    tokenizer.for_each_slow(&text, &mut scratch, |start, end, term| {
        slow.push((start, end, term.bytes().to_vec()));
    });
    assert_eq!(fast, slow);
    let mut last = 0;
    for (start, end, term) in &fast {
        assert!(last <= *start && start < end && text.get(*start..*end).is_some());
        assert!(std::str::from_utf8(term).is_ok());
        last = *end;
    }

    let mut counter = Counter::new(tokenizer);
    text.lines().for_each(|row| counter.count_row(row, None));
    let stats = counter.finish().0;
    if stats.terms.is_empty() {
        return;
    }
    let index = Index::new(tokenizer, Vec::new(), stats);
    let mut augmenter = Augmenter::new(&index, Options::new(&index));
    let mut out = Vec::new();
    for (row, line) in text.lines().enumerate() {
        augmenter.augment(line, row as u64, &mut out);
    }
    std::str::from_utf8(&out).expect("a negative is UTF-8");
});
