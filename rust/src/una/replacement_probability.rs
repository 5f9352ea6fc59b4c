//! The probabilities with which words are replaced.

use crate::una::options::{Mode, Options, ReplaceWhich, ReplaceWith};
use crate::una::word::Word;

/// Sets the probabilities of the n replaceable words to p_i = min(1, beta * n * w_i / sum_j w_j). If s_i is the score
/// of word i, its weight w_i is s_i - min s in [`Mode::Negative`] and max s - s_i in [`Mode::Positive`].
///
/// If no p_i reaches 1, every word with the largest p_i gets p_i = 1, so that the sentence changes. (The released code
/// sets only the first such word to 1.)
///
/// If all scores are equal, or with [`ReplaceWhich::Random`], every p_i is beta instead, and the function returns true:
/// one word must be replaced regardless of its probability. The combination of [`ReplaceWhich::Random`] with
/// [`ReplaceWith::Random`] (the ablation of both steps) is an exception: no word has to be replaced, and sentences of
/// fewer than three words do not change.
pub(super) fn set_probabilities(words: &mut [Word], options: &Options) -> bool {
    let beta = options.beta;
    let (mut n, mut low, mut high) = (0, f64::INFINITY, f64::NEG_INFINITY);
    for word in words.iter().filter(|word| word.replaceable) {
        n += 1;
        low = if word.score < low { word.score } else { low };
        high = if word.score > high { word.score } else { high };
    }
    if n == 0 {
        return false;
    }
    if high == low || options.replace_which == ReplaceWhich::Random {
        let ablation = options.replace_which == ReplaceWhich::Random && options.replace_with == ReplaceWith::Random;
        let p = if ablation && words.len() < 3 { 0.0 } else { beta };
        for word in words.iter_mut().filter(|word| word.replaceable) {
            word.p = p;
        }
        return !ablation;
    }
    match options.mode {
        Mode::Negative => spread(words, beta * n as f64, high - low, |score| score - low),
        Mode::Positive => spread(words, beta * n as f64, high - low, |score| high - score),
    }
    false
}

/// Sets probabilities that are proportional to the weights and have the sum `total` before clipping at 1. `heaviest` is
/// the largest weight.
fn spread(words: &mut [Word], total: f64, heaviest: f64, weight: impl Fn(f64) -> f64) {
    let mut sum = 0.0;
    for word in words.iter().filter(|word| word.replaceable) {
        sum += weight(word.score);
    }
    let scale = total / sum;
    let force = scale * heaviest < 1.0;
    for word in words.iter_mut().filter(|word| word.replaceable) {
        let weight = weight(word.score);
        let p = scale * weight;
        word.p = if p > 1.0 || force && weight == heaviest { 1.0 } else { p };
    }
}
