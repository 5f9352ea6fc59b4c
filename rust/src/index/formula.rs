//! The TF-IDF formulas.

/// Returns tf = ln(1 + c/L) of a term with c = `count` occurrences in a document of L = `length` terms.
#[inline]
pub fn tf(count: u32, length: u32) -> f64 {
    (f64::from(count) / f64::from(length)).ln_1p()
}

/// Returns idf = ln(N/df) of a term that occurs in `df` of N = `documents` documents; 0 if it occurs in all of them.
#[inline]
pub fn idf(documents: u64, df: u64) -> f64 {
    (documents as f64 / df as f64).ln()
}

/// Returns the maximum score of a term over all documents; `max_frequency` is the maximum of c/L.
#[inline]
pub fn max_score(max_frequency: f64, idf: f64) -> f64 {
    max_frequency.ln_1p() * idf
}
