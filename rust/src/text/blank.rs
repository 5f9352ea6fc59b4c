//! Recognises white space and blank rows, and counts words.
//!
//! A blank row keeps its row number everywhere. It is not a document of an index (`index/stats.rs`), has no negative
//! (`una/augment.rs`), and is left out of training (`filled` in `python/cse/data/corpus.py`) and search; its embedding
//! is zero. Python recognises blank rows by their number of words, or by `str.strip`, which removes the same
//! characters.

/// Whether `c` is white space according to Python's `str.isspace`: Unicode white space and the separators U+001C to
/// U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// Whether a row contains only white space.
pub fn is_blank(row: &str) -> bool {
    row.chars().all(is_space)
}

/// Returns the number of words in a row; words are separated by white space, and a blank row has none.
pub fn count_words(row: &str) -> u32 {
    row.split(is_space).filter(|word| !word.is_empty()).count() as u32
}
