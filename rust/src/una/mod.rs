//! UNA: generation of hard negatives by replacing words of a sentence.

pub mod augment;
pub(crate) mod casing;
pub mod files;
pub mod options;
mod probabilities;
pub mod radius;
pub mod record;
pub mod texts;
