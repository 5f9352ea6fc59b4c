//! Applies UNA to texts in memory.

use crate::index::Index;
use crate::random::{EXPLAIN, random_bits, to_unit};
use crate::text::utf8_string;
use crate::una::augment::Augmenter;
use crate::una::options::{Options, Report};
use crate::una::record;

/// Returns one synthetic sentence for each text, and a report. Each item of `texts` is a text and its row number.
pub fn augment_texts<'a>(
    index: &Index,
    options: Options,
    texts: impl Iterator<Item = (&'a str, u64)>,
) -> (Vec<String>, Report) {
    let mut augmenter = Augmenter::new(index, options);
    let outputs = texts.map(|(text, row)| {
        let mut out = Vec::with_capacity(text.len() * 5 / 4);
        augmenter.augment(text, row, &mut out);
        utf8_string(out)
    });
    (outputs.collect(), augmenter.report)
}

/// A replaced word: old word, new word, span of the old word in the text, span of the new word in the output,
/// replacement probability, old rank and new rank. Spans count characters; ranks start at 1.
pub type Replaced = (String, String, (usize, usize), (usize, usize), f64, usize, usize);

/// Returns the synthetic sentence for one text, and the replaced words.
pub fn replacements(index: &Index, options: Options, text: &str, row: u64) -> (String, Vec<Replaced>) {
    let mut augmenter = Augmenter::new(index, options);
    let mut out = Vec::new();
    augmenter.augment(text, row, &mut out);
    let output = utf8_string(out);
    let replaced = record::replaced(&augmenter, text, &output)
        .into_iter()
        .map(|r| (r.old.into(), r.new.into(), r.span, r.new_span, r.p, r.rank, r.new_rank));
    let replaced = replaced.collect();
    (output, replaced)
}

/// Statistics of a word: the word as written, whether it is in the index, document frequency, score, replacement
/// probability, rank (from 1), sampled replacements, and whether it can be replaced. A word that cannot be replaced has
/// probability 0 and no sampled replacements.
pub type Explained = (String, bool, u64, f64, f64, usize, Vec<String>, bool);

/// Returns the statistics of each word of a text, including `samples` sampled replacements per word.
pub fn explain(index: &Index, options: Options, text: &str, samples: usize) -> Vec<Explained> {
    let mut augmenter = Augmenter::new(index, options);
    augmenter.weigh(text);
    let draws: Vec<u64> = (0..samples as u64).collect();
    let explained = augmenter.words.iter().enumerate().map(|(w, word)| {
        let df = if word.seen { index.stats.df[index.term_at(word.rank)] } else { 0 };
        let sampled = random_bits(options.seed, w as u64, &draws, EXPLAIN)
            .into_iter()
            .filter(|_| word.replaceable)
            .filter_map(|bits| augmenter.sample(w, to_unit(bits)))
            .map(str::to_owned)
            .collect();
        let written = text[word.start..word.end].to_owned();
        (written, word.seen, df, word.score, word.p, word.rank + 1, sampled, word.replaceable)
    });
    explained.collect()
}
