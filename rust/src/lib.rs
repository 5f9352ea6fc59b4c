//! TF-IDF statistics of a corpus, and hard negatives by UNA (Unsupervised hard Negative Augmentation).
//!
//! For a term t that occurs c times in a document of L terms, and in df of the N documents of the corpus:
//!
//! ```text
//! tf  = ln(1 + c/L)      idf = ln(N/df)      score = tf * idf
//! max_score[t] = max over d of score(t, d) = idf[t] * ln(1 + max over d of c/L)
//! ```
//!
//! One streaming pass that keeps N, `df[t]` and max c/L is therefore sufficient ([`index::build`]); all other arrays
//! are derived when an index is opened ([`index`]).
//!
//! UNA ([`una::augment`]) makes a hard negative by replacing words of a sentence. If n words are replaceable, and word
//! i has score s_i in the sentence, word i is replaced with probability
//!
//! ```text
//! p_i = min(1, beta * n * (s_i - min s) / sum_j (s_j - min s))
//! ```
//!
//! If no p_i reaches 1, the largest is set to 1. Terms are ranked by their maximum scores. The replacement is drawn
//! from the terms at most r ranks away from the word, with probability proportional to the maximum score. Let P be the
//! prefix sums of the maximum scores in rank order. For a word of rank k, one uniform number is drawn from
//! `P[k-r]..P[k+r+1]`, excluding the interval `P[k]..P[k+1]` of the word itself; a search in P finds the term whose
//! interval contains the number ([`una::radius`]).
//!
//! Of the modules [`text`], [`index`], [`una`] and [`doctor`], each imports only those before it in this list; `py`
//! uses all four. The remaining modules may be used by any module.

pub mod checksum;
pub mod doctor;
pub mod error;
pub mod index;
pub mod output;
pub mod parallel;
pub mod progress;
pub mod random;
pub mod text;
pub mod una;
mod wait;

#[cfg(feature = "python")]
mod py;

pub use error::{Error, Result};
pub use index::stats::Stats;
pub use index::{Index, VocabularyFilter};
pub use progress::Progress;
pub use text::reader::{EncodingErrors, Input, ReadOptions};
pub use text::tokenize::Tokenizer;
pub use una::augment::Augmenter;
pub use una::options::{Options, Report};
