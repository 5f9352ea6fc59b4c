//! One negative as a JSON object: what was replaced, by what, and how likely that was.

use serde::Serialize;

use crate::augment::Augmenter;

#[derive(Serialize)]
struct Record<'a> {
    row: u64,
    copy: u64,
    text: &'a str,
    /// The synthetic sentence, negative or positive.
    output: &'a str,
    replaced: Vec<Replaced<'a>>,
}

/// Spans count characters (code points) and exclude their end; ranks begin at 1.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replaced<'a> {
    pub old: &'a str,
    pub new: &'a str,
    /// Of the old word in the text, and of the new one in the output.
    pub span: (usize, usize),
    pub new_span: (usize, usize),
    /// The probability with which the word was to be replaced.
    pub p: f64,
    /// The old word's rank, or the one its score would take if it was never seen.
    pub rank: usize,
    pub new_rank: usize,
}

/// Counts characters up to growing byte offsets.
pub struct Ruler<'a> {
    text: &'a str,
    byte: usize,
    chars: usize,
}

impl<'a> Ruler<'a> {
    pub fn new(text: &'a str) -> Self {
        Ruler {
            text,
            byte: 0,
            chars: 0,
        }
    }

    pub fn at(&mut self, byte: usize) -> usize {
        self.chars += self.text[self.byte..byte].chars().count();
        self.byte = byte;
        self.chars
    }
}

/// What the last rewriting of `text` into `output` replaced.
pub fn replaced<'a>(augmenter: &Augmenter, text: &'a str, output: &'a str) -> Vec<Replaced<'a>> {
    let (mut old_ruler, mut new_ruler) = (Ruler::new(text), Ruler::new(output));
    let each = augmenter.replacements.iter().map(|new| {
        let word = &augmenter.words[new.word];
        Replaced {
            old: &text[word.start..word.end],
            new: &output[new.start..new.end],
            span: (old_ruler.at(word.start), old_ruler.at(word.end)),
            new_span: (new_ruler.at(new.start), new_ruler.at(new.end)),
            p: word.p,
            rank: word.rank + 1,
            new_rank: new.new_rank + 1,
        }
    });
    each.collect()
}

/// Appends the record of the last rewriting, and `\n`.
pub fn push(
    augmenter: &Augmenter,
    row: u64,
    copy: u64,
    text: &str,
    output: &str,
    out: &mut Vec<u8>,
) {
    let record = Record {
        row,
        copy,
        text,
        output,
        replaced: replaced(augmenter, text, output),
    };
    serde_json::to_writer(&mut *out, &record).expect("memory takes it, and all of it is text");
    out.push(b'\n');
}
