//! The core of cse: TF-IDF statistics of a corpus, and UNA's hard negatives drawn from them.
//!
//! UNA (unsupervised negatives by augmentation) in twenty lines. For a term t in a document d of L terms,
//! c of them t, over N documents, df of which hold t:
//!
//! ```text
//! tf  = ln(1 + c/L)      idf = ln(N/df)      score = tf * idf
//! max_score[t] = max over d of score(t, d) = idf[t] * ln(1 + max over d of c/L)
//! ```
//!
//! so one streaming pass that keeps N, `df[t]` and max c/L is enough ([`stats`]); the rest is derived when an index
//! is opened ([`index`]). To turn a sentence into its hard negative ([`augment`]), each word i of n is replaced with
//!
//! ```text
//! p_i = min(1, beta * n * (s_i - min s) / sum_j (s_j - min s))
//! ```
//!
//! (the largest becomes 1 if none reaches 1) by a term within r ranks of it in the order of maximum scores, drawn
//! with probability proportional to its maximum score: with the prefix sums P of the scores in rank order that is
//! one uniform number on P[i-r]..P[i+r+1], its own interval cut out, and one search.
//!
//! Modules, each using only those before it: [`error`], `source`, [`corpus`], [`table`], [`lookup`], [`treebank`],
//! [`tokenize`], [`stats`], [`matrix`], [`index`], [`options`], [`draw`], `surface`, [`augment`], [`record`], [`store`],
//! [`jobs`], [`doctor`]; `py` sees all of them and none sees it.

pub mod augment;
pub mod corpus;
pub mod doctor;
pub mod draw;
pub mod error;
pub mod index;
pub mod jobs;
pub mod lookup;
pub mod matrix;
pub mod options;
pub mod record;
mod source;
pub mod stats;
pub mod store;
mod surface;
pub mod table;
pub mod tokenize;
pub mod treebank;

#[cfg(feature = "python")]
mod py;

pub use augment::Augmenter;
pub use corpus::{EncodingErrors, Input, Progress, ReadOptions};
pub use error::{Error, Result};
pub use index::{Index, View};
pub use options::{Options, Report};
pub use stats::Stats;
pub use tokenize::Tokenizer;
