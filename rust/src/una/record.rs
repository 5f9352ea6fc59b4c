//! Describes a synthetic sentence as a JSON object that lists the replaced words.

use serde::Serialize;

use crate::text::CharOffsets;
use crate::una::augment::Augmenter;

#[derive(Serialize)]
struct Record<'a> {
    row: u64,
    copy: u64,
    text: &'a str,
    /// The synthetic sentence.
    output: &'a str,
    replaced: Vec<Replaced<'a>>,
}

/// A replaced word. Spans are in characters (code points), and their ends are exclusive. Ranks start at 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replaced<'a> {
    pub old: &'a str,
    pub new: &'a str,
    /// Position of the old word in the text.
    pub span: (usize, usize),
    /// Position of the new word in the output.
    pub new_span: (usize, usize),
    /// Replacement probability of the old word; see [`Word::p`](crate::una::word::Word::p).
    pub p: f64,
    /// Rank of the old word; for an unseen word, the rank that its score would have.
    pub rank: usize,
    pub new_rank: usize,
}

/// Returns the words that the last call of `Augmenter::rewrite` replaced in `text` to produce `output`.
pub fn replaced<'a>(augmenter: &Augmenter, text: &'a str, output: &'a str) -> Vec<Replaced<'a>> {
    let (mut in_text, mut in_output) = (CharOffsets::new(text), CharOffsets::new(output));
    let each = augmenter.replacements.iter().map(|new| {
        let word = &augmenter.words[new.word];
        Replaced {
            old: &text[word.start..word.end],
            new: &output[new.start..new.end],
            span: (in_text.at(word.start), in_text.at(word.end)),
            new_span: (in_output.at(new.start), in_output.at(new.end)),
            p: word.p,
            rank: word.rank + 1,
            new_rank: new.new_rank + 1,
        }
    });
    each.collect()
}

/// Appends the JSON object for the sentence that the last call of `Augmenter::rewrite` wrote, followed by `\n`.
pub fn push(augmenter: &Augmenter, row: u64, copy: u64, text: &str, output: &str, out: &mut Vec<u8>) {
    let record = Record { row, copy, text, output, replaced: replaced(augmenter, text, output) };
    serde_json::to_writer(&mut *out, &record)
        .expect("writing to memory does not fail, and all values are text or numbers");
    out.push(b'\n');
}
