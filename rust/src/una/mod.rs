//! UNA (Unsupervised hard Negative Augmentation): makes hard negatives by replacing words of a sentence.

pub mod augment;
pub(crate) mod casing;
pub mod files;
pub mod options;
pub mod radius;
pub mod record;
mod replacement_probability;
pub mod texts;
pub mod word;
