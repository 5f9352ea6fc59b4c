//! Splits the bytes of a corpus into rows, and rows into terms.

pub mod reader;
pub mod row;
pub mod rows;
pub mod source;
pub mod term_key;
pub mod tokenize;
pub mod treebank;
pub mod wordpieces;

/// Converts bytes to a string. The bytes must be UTF-8, as sentences and terms are.
pub(crate) fn utf8_string(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("sentences and terms are UTF-8 and are cut at character boundaries")
}

/// Converts byte offsets in a text to character offsets. Each call is fast if the offsets do not decrease.
pub struct CharOffsets<'a> {
    text: &'a str,
    byte: usize,
    chars: usize,
}

impl<'a> CharOffsets<'a> {
    /// Starts at the beginning of `text`.
    pub fn new(text: &'a str) -> Self {
        CharOffsets { text, byte: 0, chars: 0 }
    }

    /// Returns the character offset for the byte offset `byte`.
    pub fn at(&mut self, byte: usize) -> usize {
        if byte < self.byte {
            *self = CharOffsets::new(self.text); // only pieces of one character overlap
        }
        self.chars += self.text[self.byte..byte].chars().count();
        self.byte = byte;
        self.chars
    }
}
