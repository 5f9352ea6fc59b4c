//! What may be chosen about UNA, and what is said of the outcome.

use crate::error::{Error, Result};
use crate::index::Index;
use crate::tokenize::Rule;

/// Which words are replaced (UNA's step 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step2 {
    /// Each with a probability that grows with its TF-IDF.
    Tfidf,
    /// Each with probability beta: Table 2's ablation.
    Random,
}

/// By what they are replaced (UNA's step 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step3 {
    /// By a term within the radius, in proportion to its maximum score.
    Radius,
    /// By any other term, evenly: Table 2's ablation as the paper words it. The released code draws evenly within
    /// the radius in the order of first appearance instead; an index has no such order, so that is not offered.
    Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The weighty words go: what comes out means something else.
    Negative,
    /// The light words go (UDA): what comes out means nearly the same.
    Positive,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Only replaced words change; spacing, punctuation and case stay.
    Keep,
    /// Terms joined by spaces, as published.
    Plain,
}

/// A choice that has names.
pub trait Named: Copy + 'static {
    const FLAG: &'static str;
    const NAMES: &'static [(&'static str, Self)];

    fn from_name(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            let why = format!("{name:?} is unknown; choose {}", names.join(" or "));
            Error::invalid(Self::FLAG, why)
        })
    }
}

impl Named for Step2 {
    const FLAG: &'static str = "--step2";
    const NAMES: &'static [(&'static str, Self)] =
        &[("tfidf", Step2::Tfidf), ("random", Step2::Random)];
}

impl Named for Step3 {
    const FLAG: &'static str = "--step3";
    const NAMES: &'static [(&'static str, Self)] =
        &[("radius", Step3::Radius), ("random", Step3::Random)];
}

impl Named for Mode {
    const FLAG: &'static str = "--mode";
    const NAMES: &'static [(&'static str, Self)] =
        &[("negative", Mode::Negative), ("positive", Mode::Positive)];
}

impl Named for Surface {
    const FLAG: &'static str = "--surface";
    const NAMES: &'static [(&'static str, Self)] =
        &[("keep", Surface::Keep), ("plain", Surface::Plain)];
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub epoch: u64,
    /// Which of a row's several negatives this is.
    pub copy: u64,
    /// About the share of words replaced.
    pub beta: f64,
    /// In ranks, to either side.
    pub radius: usize,
    pub surface: Surface,
    pub step2: Step2,
    pub step3: Step3,
    pub mode: Mode,
}

impl Options {
    /// UNA's defaults: beta 0.5, the index's own radius and surface.
    pub fn new(index: &Index) -> Self {
        Options {
            seed: 0,
            epoch: 0,
            copy: 0,
            beta: 0.5,
            radius: index.default_radius(),
            surface: default_surface(index),
            step2: Step2::Tfidf,
            step3: Step3::Radius,
            mode: Mode::Negative,
        }
    }

    /// The same, if all of it can be.
    pub fn checked(self, index: &Index) -> Result<Self> {
        if !(0.0..=1.0).contains(&self.beta) {
            let why = format!("{} is not between 0 and 1", self.beta);
            return Err(Error::invalid("--beta", why));
        }
        if self.radius == 0 {
            let why = "0 leaves no word to draw from; it must be at least 1";
            return Err(Error::invalid("--radius", why));
        }
        if self.surface == Surface::Keep && default_surface(index) == Surface::Plain {
            let why = "keep is not for an index by the treebank tokenizer, whose terms take words apart; \
                 leave it out, or choose plain";
            return Err(Error::invalid("--surface", why));
        }
        Ok(self)
    }
}

/// The treebank tokenizer cuts "don't" into "do" and "n't", and rewrites quotes: its terms are joined by spaces, as
/// published.
pub fn default_surface(index: &Index) -> Surface {
    match index.tokenizer.rule {
        Rule::Treebank => Surface::Plain,
        Rule::Unicode | Rule::Whitespace => Surface::Keep,
    }
}

/// What happened to some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Rows written: as many as were read, times the copies of each.
    pub rows: u64,
    pub blank: u64,
    /// Rows that came back as they were: blank, without a word to replace, or with no other word to take.
    pub unchanged: u64,
    pub words: u64,
    pub unseen: u64,
    pub replaced: u64,
    /// Rows with bytes that were not UTF-8, or text that was not Unicode, and were repaired.
    pub repaired: u64,
}

impl Report {
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
