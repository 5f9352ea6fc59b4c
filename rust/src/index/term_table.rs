//! The hash table used for counting, which maps terms to values.
//!
//! Open addressing over eight-byte slots, each with one half of the hash and an id. Values are stored next to the first
//! sixteen bytes of their terms, so that most look-ups touch two cache lines and compare no strings. `HashMap` would
//! cost one more cache miss per token, because its keys would be slices stored elsewhere.

use crate::text::term_key::{Key, PAD, Term};

// Aligned to a cache line, so that reading an entry touches one line.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry<T> {
    head: [u64; 2],
    /// Offset of the term in [`TermTable::arena`].
    start: usize,
    len: u32,
    value: T,
}

/// A map from terms to values of type `T`. Terms are numbered in order of insertion.
#[derive(Clone, Debug)]
pub struct TermTable<T> {
    /// An occupied slot contains the upper half of the hash and id + 1; an empty slot is 0.
    slots: Vec<u64>,
    entries: Vec<Entry<T>>,
    /// The bytes of all terms, end to end.
    arena: Vec<u8>,
}

impl<T> TermTable<T> {
    /// Returns an empty table with space for `terms` terms.
    pub fn with_capacity(terms: usize) -> Self {
        TermTable {
            slots: vec![0; (terms * 2).next_power_of_two().max(1024)],
            entries: Vec::with_capacity(terms),
            arena: Vec::new(),
        }
    }

    /// Returns the number of terms.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the table has no terms.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of a term, or `None` if it is not in the table.
    #[inline]
    pub fn get(&self, term: &Term) -> Option<&T> {
        let id = self.find(&term.key(), term.bytes()).ok()?;
        Some(&self.entries[id].value)
    }

    /// Returns the id of a term: 0, 1, 2, ... in order of insertion. A new term is inserted with the value `make()`.
    #[inline]
    pub fn intern(&mut self, term: &Term, make: impl FnOnce() -> T) -> usize {
        match self.find(&term.key(), term.bytes()) {
            Ok(id) => id,
            Err(slot) => self.insert(slot, term, make()),
        }
    }

    /// Returns the value of the term with this id, for modification.
    #[inline]
    pub fn value_mut(&mut self, id: usize) -> &mut T {
        &mut self.entries[id].value
    }

    /// Returns the bytes of the term with this id.
    pub fn term(&self, id: usize) -> &[u8] {
        let entry = &self.entries[id];
        &self.arena[entry.start..entry.start + entry.len as usize]
    }

    /// Returns the value of the term with this id.
    pub fn value(&self, id: usize) -> &T {
        &self.entries[id].value
    }

    /// Returns the id of the term or, as the error, the slot where the term is to be inserted.
    #[inline]
    fn find(&self, key: &Key, bytes: &[u8]) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let tag = key.hash() >> 32;
        let mut at = key.hash() as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            if slot >> 32 == tag {
                let id = (slot as u32 - 1) as usize;
                let entry = &self.entries[id];
                if entry.head == key.words()
                    && entry.len as usize == key.len()
                    && (!key.is_long() || self.term(id) == bytes)
                {
                    return Ok(id);
                }
            }
            at = (at + 1) & mask;
        }
    }

    #[cold]
    fn insert(&mut self, slot: usize, term: &Term, value: T) -> usize {
        let id = self.entries.len();
        assert!(id < u32::MAX as usize, "more than 2^32 - 1 distinct terms");
        self.slots[slot] = term.key().hash() >> 32 << 32 | (id as u64 + 1);
        self.entries.push(Entry {
            head: term.key().words(),
            start: self.arena.len(),
            len: term.key().len() as u32,
            value,
        });
        self.arena.extend_from_slice(term.bytes());
        if self.entries.len() * 2 > self.slots.len() {
            self.grow();
        }
        id
    }

    fn grow(&mut self) {
        let mut slots = vec![0; self.slots.len() * 2];
        let mask = slots.len() - 1;
        let mut padded = Vec::new();
        for id in 0..self.entries.len() {
            padded.clear();
            padded.extend_from_slice(self.term(id));
            let len = padded.len();
            padded.extend_from_slice(&[0; PAD]);
            let hash = Term::new(&padded, 0, len).key().hash();
            let mut at = hash as usize & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = hash >> 32 << 32 | (id as u64 + 1);
        }
        self.slots = slots;
    }
}
