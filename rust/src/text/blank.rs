//! Recognises white space and blank rows, and counts words.
//!
//! Blank rows are numbered like other rows. A blank row is not a document of an index (`index/stats.rs`), has no
//! negative (`una/augment.rs`), and is left out of training (`filled` in `python/cse/data/corpus.py`) and search; its
//! embedding is zero. The Python code recognises blank rows by their number of words, or with `str.strip`, which
//! removes exactly the characters that [`is_space`] accepts.

/// Whether `c` is white space according to Python's `str.isspace`: Unicode white space and the separators U+001C to
/// U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Whether a row contains only white space.
pub fn is_blank(row: &str) -> bool {
    row.chars().all(is_space)
}

/// Returns the number of words in a row. Words are separated by white space; a blank row has 0 words.
pub fn count_words(row: &str) -> u32 {
    row.split(is_space).filter(|word| !word.is_empty()).count() as u32
}
