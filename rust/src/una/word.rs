//! A word of a sentence, with its score and the probability that it is replaced.

/// One word of a sentence.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Start and end of the word in the row, in bytes.
    pub start: usize,
    pub end: usize,
    /// A number that identifies the term of the word: its rank, or V + k for the k-th distinct unseen word of the row
    /// (from 0), where V is the number of terms in the index.
    pub key: u32,
    /// Rank of the word; for an unseen word, the rank that its score would have.
    pub rank: usize,
    /// The class of the term; see [`Tokenizer::class`](crate::Tokenizer::class).
    pub class: usize,
    /// Whether the word is a term of the index; otherwise it is called unseen.
    pub seen: bool,
    pub(super) idf: f64,
    /// tf * idf in this sentence.
    pub score: f64,
    /// Probability that the word is replaced, not counting the replacement that [`Augmenter::force_one`](crate::una::augment::Augmenter::force_one) may add; 0 if
    /// the word is not replaceable.
    pub p: f64,
    /// Whether the word may be replaced. With [`OutputForm::Keep`](crate::una::options::OutputForm::Keep), a word next to a letter, a digit or `_` may not be.
    /// With pieces, a piece that shares a character with another may not be.
    pub replaceable: bool,
}
