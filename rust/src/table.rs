//! From term to value: the hash table for counting.
//!
//! Open addressing over eight-byte slots (a tag of the hash and an id), values beside the first sixteen bytes
//! of their term, so that most look-ups touch two cache lines and compare no strings. The standard map and
//! hashbrown cost one more miss a token here, since their key would be an owned or borrowed slice elsewhere.

/// Readable bytes that must follow every term, so that its first sixteen can be loaded at once.
pub const PAD: usize = 16;

/// A term in a padded buffer, with its hash.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    bytes: &'a [u8],
    key: Key,
}

/// What a look-up compares: all of a term of up to sixteen bytes, the beginning of a longer one.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    head: [u64; 2],
    hash: u64,
    len: u32,
}

impl Key {
    /// Bytes of the whole term.
    #[allow(clippy::len_without_is_empty)] // a term is never empty
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The first sixteen bytes as two numbers.
    pub fn words(&self) -> [u64; 2] {
        self.head
    }

    /// The first sixteen bytes, zeros after a shorter term.
    pub fn head(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.head[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.head[1].to_le_bytes());
        bytes
    }

    /// Whether the rest of the term must be compared too.
    pub fn is_long(&self) -> bool {
        self.len > 16
    }
}

/// Masks that keep the first 0 to 16 bytes of two words: a look-up instead of a branch on the length, which the
/// processor guesses wrongly as often as not.
const KEEP: [[u64; 2]; 17] = {
    let mut masks = [[0; 2]; 17];
    let mut len = 1;
    while len <= 16 {
        let low = if len < 8 { len } else { 8 };
        masks[len][0] = u64::MAX >> (64 - 8 * low);
        if len > 8 {
            masks[len][1] = u64::MAX >> (64 - 8 * (len - 8));
        }
        len += 1;
    }
    masks
};

impl<'a> Term<'a> {
    /// The term `padded[start..end]`; `padded` goes on for at least `PAD` bytes.
    #[inline]
    pub fn new(padded: &'a [u8], start: usize, end: usize) -> Self {
        let len = end - start;
        let bytes: &[u8; 16] = padded[start..start + 16].try_into().expect("sixteen bytes");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let keep = KEEP[len.min(16)];
        let head = [word(0) & keep[0], word(8) & keep[1]];
        let mut hash = fold(
            head[0] ^ 0x9e37_79b9_7f4a_7c15,
            head[1] ^ (len as u64) << 56 ^ 0xd1b5_4a32_d192_ed03,
        );
        let mut at = start + 16;
        while at < end {
            let rest: [u8; 8] = padded[at..at + 8].try_into().expect("eight bytes");
            let rest = u64::from_le_bytes(rest) & KEEP[(end - at).min(8)][0];
            hash = fold(hash ^ rest, 0xa076_1d64_78bd_642f);
            at += 8;
        }
        Term {
            bytes: &padded[start..end],
            key: Key {
                head,
                hash,
                len: len as u32,
            },
        }
    }

    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub fn key(&self) -> Key {
        self.key
    }
}

/// The 128-bit product folded onto itself: mixes both factors into all 64 bits.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

// Aligned to a cache line, so that a look-up touches one.
#[derive(Clone, Debug)]
#[repr(align(64))]
struct Entry<T> {
    head: [u64; 2],
    /// Where the term lies in the arena.
    start: usize,
    len: u32,
    value: T,
}

#[derive(Clone, Debug)]
pub struct TermTable<T> {
    /// 0 is empty; else the upper half of the hash, and id + 1.
    slots: Vec<u64>,
    entries: Vec<Entry<T>>,
    arena: Vec<u8>,
}

impl<T> TermTable<T> {
    pub fn with_capacity(terms: usize) -> Self {
        TermTable {
            slots: vec![0; (terms * 2).next_power_of_two().max(1024)],
            entries: Vec::with_capacity(terms),
            arena: Vec::new(),
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub fn get(&self, term: &Term) -> Option<&T> {
        let id = self.find(&term.key, term.bytes).ok()?;
        Some(&self.entries[id].value)
    }

    /// The term's id, 0, 1, 2, ... in the order of first sight; `make` gives a new term its value.
    #[inline]
    pub fn intern(&mut self, term: &Term, make: impl FnOnce() -> T) -> usize {
        match self.find(&term.key, term.bytes) {
            Ok(id) => id,
            Err(slot) => self.insert(slot, term, make()),
        }
    }

    #[inline]
    pub fn value_mut(&mut self, id: usize) -> &mut T {
        &mut self.entries[id].value
    }

    pub fn term(&self, id: usize) -> &[u8] {
        let entry = &self.entries[id];
        &self.arena[entry.start..entry.start + entry.len as usize]
    }

    pub fn value(&self, id: usize) -> &T {
        &self.entries[id].value
    }

    /// The entry of the term, or the slot where it belongs.
    #[inline]
    fn find(&self, key: &Key, bytes: &[u8]) -> Result<usize, usize> {
        let mask = self.slots.len() - 1;
        let tag = key.hash >> 32;
        let mut at = key.hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            if slot >> 32 == tag {
                let id = (slot as u32 - 1) as usize;
                let entry = &self.entries[id];
                if entry.head == key.head
                    && entry.len == key.len
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
        self.slots[slot] = term.key.hash >> 32 << 32 | (id as u64 + 1);
        self.entries.push(Entry {
            head: term.key.head,
            start: self.arena.len(),
            len: term.key.len,
            value,
        });
        self.arena.extend_from_slice(term.bytes);
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
            let hash = Term::new(&padded, 0, len).key.hash;
            let mut at = hash as usize & mask;
            while slots[at] != 0 {
                at = (at + 1) & mask;
            }
            slots[at] = hash >> 32 << 32 | (id as u64 + 1);
        }
        self.slots = slots;
    }
}
