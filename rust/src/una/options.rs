//! Options of UNA, and the report on a run.

use crate::error::{Error, Named, Result};
use crate::index::Index;
use crate::text::tokenize::Rule;
use crate::una::radius::default_radius;

/// How the words to replace are selected (step 2 of UNA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceWhich {
    /// Each word with a probability that increases with its TF-IDF score or, in [`Mode::Positive`], decreases with it.
    Tfidf,
    /// Each word with probability beta (ablation in Table 2 of the paper).
    Random,
}

/// How the replacements are selected (step 3 of UNA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplaceWith {
    /// A term within the radius, with probability proportional to its maximum score.
    Radius,
    /// Any other term, with equal probability (ablation in Table 2, as the paper describes it). The authors' released
    /// code instead orders the terms by first appearance and draws uniformly within the radius. This is not offered,
    /// because an index does not store the order of first appearance.
    Random,
}

/// Kind of synthetic sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Replace words with high scores, so that the meaning changes.
    Negative,
    /// Replace words with low scores, as in UDA (Unsupervised Data Augmentation), so that the meaning changes little.
    Positive,
}

/// The form in which synthetic sentences are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputForm {
    /// Change only the replaced words; spacing, punctuation and case are kept.
    Keep,
    /// Join the terms by spaces, as in the published UNA.
    Plain,
}

impl Named for ReplaceWhich {
    const FLAG: &'static str = "--replace-which";
    const NAMES: &'static [(&'static str, Self)] = &[("tfidf", ReplaceWhich::Tfidf), ("random", ReplaceWhich::Random)];
}

impl Named for ReplaceWith {
    const FLAG: &'static str = "--replace-with";
    const NAMES: &'static [(&'static str, Self)] = &[("radius", ReplaceWith::Radius), ("random", ReplaceWith::Random)];
}

impl Named for Mode {
    const FLAG: &'static str = "--mode";
    const NAMES: &'static [(&'static str, Self)] = &[("negative", Mode::Negative), ("positive", Mode::Positive)];
}

impl Named for OutputForm {
    const FLAG: &'static str = "--surface";
    const NAMES: &'static [(&'static str, Self)] = &[("keep", OutputForm::Keep), ("plain", OutputForm::Plain)];
}

/// Options of UNA.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub epoch: u64,
    /// Number of the negative, from 0, if several are generated for one row.
    pub copy: u64,
    /// Mean replacement probability of the replaceable words in a sentence, before clipping at 1.
    pub beta: f64,
    /// Largest difference in rank between a word and its replacement.
    pub radius: usize,
    pub surface: OutputForm,
    pub replace_which: ReplaceWhich,
    pub replace_with: ReplaceWith,
    pub mode: Mode,
}

impl Options {
    /// Returns the default options: beta 0.5, and the default radius and output form for the index.
    pub fn new(index: &Index) -> Self {
        Options {
            seed: 0,
            epoch: 0,
            copy: 0,
            beta: 0.5,
            radius: default_radius(index),
            surface: default_surface(index),
            replace_which: ReplaceWhich::Tfidf,
            replace_with: ReplaceWith::Radius,
            mode: Mode::Negative,
        }
    }

    /// Checks the options against the index and returns them.
    pub fn checked(self, index: &Index) -> Result<Self> {
        if !(0.0..=1.0).contains(&self.beta) {
            let why = format!("{} is not a number from 0 to 1", self.beta);
            return Err(Error::invalid("--beta", why));
        }
        if self.radius == 0 {
            let why = "0 leaves no word to draw from; it must be at least 1";
            return Err(Error::invalid("--radius", why));
        }
        if self.surface == OutputForm::Keep && default_surface(index) == OutputForm::Plain {
            let why = "keep is not possible for an index with the treebank tokenizer, which splits words; \
                 omit the option, or choose plain";
            return Err(Error::invalid("--surface", why));
        }
        if self.surface == OutputForm::Plain && index.tokenizer.rule == Rule::Wordpieces {
            let why = "plain is not possible for an index with the wordpieces tokenizer, whose terms are parts of \
                 words; omit the option, or choose keep";
            return Err(Error::invalid("--surface", why));
        }
        Ok(self)
    }
}

/// Returns the default output form for an index. The treebank tokenizer splits "don't" into "do" and "n't" and rewrites
/// quotes, so its terms can only be joined by spaces, as in the published UNA.
pub fn default_surface(index: &Index) -> OutputForm {
    match index.tokenizer.rule {
        Rule::Treebank => OutputForm::Plain,
        Rule::Unicode | Rule::Whitespace | Rule::Wordpieces => OutputForm::Keep,
    }
}

/// Totals over all augmented rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "python", derive(pyo3::IntoPyObject))]
pub struct Report {
    /// Number of rows written: the number of rows read times the number of copies.
    pub rows: u64,
    pub blank: u64,
    /// Number of rows in which no word was replaced, for example because they are blank or have no replaceable word.
    pub unchanged: u64,
    pub words: u64,
    pub unseen: u64,
    pub replaced: u64,
    /// Number of rows in which invalid UTF-8 or lone surrogates were replaced by U+FFFD. A row counts once, whatever
    /// the number of copies.
    pub repaired: u64,
}

impl Report {
    /// Adds the totals of other rows.
    pub fn add(&mut self, other: &Report) {
        self.rows += other.rows;
        self.blank += other.blank;
        self.unchanged += other.unchanged;
        self.words += other.words;
        self.unseen += other.unseen;
        self.replaced += other.replaced;
        self.repaired += other.repaired;
    }
}
