//! The TF-IDF formulas.

/// tf = ln(1 + c/L), for a term with `count` occurrences in a document of `length` terms.
#[inline]
pub fn tf(count: u32, length: u32) -> f64 {
    (f64::from(count) / f64::from(length)).ln_1p()
}

/// idf = ln(N/df); a term that occurs in every document has idf 0.
#[inline]
pub fn idf(documents: u64, df: u64) -> f64 {
    (documents as f64 / df as f64).ln()
}

/// The largest score of a term over all documents, from its max c/L and its idf.
#[inline]
pub fn max_score(max_frequency: f64, idf: f64) -> f64 {
    max_frequency.ln_1p() * idf
}
