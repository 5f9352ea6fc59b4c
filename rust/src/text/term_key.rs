//! Terms with their hashes: the tokenizer returns them, and the hash tables look them up.

/// Number of readable bytes that must follow every term, so that its first sixteen bytes can be loaded at once.
pub const PAD: usize = 16;

/// A term in a padded buffer, with its hash.
#[derive(Clone, Copy, Debug)]
pub struct Term<'a> {
    bytes: &'a [u8],
    key: Key,
}

/// What a look-up compares first: the first sixteen bytes of a term, its length and its hash. A term of at most sixteen
/// bytes is contained in its key completely.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    head: [u64; 2],
    hash: u64,
    len: u32,
}

impl Key {
    /// Returns the length of the whole term in bytes.
    #[allow(clippy::len_without_is_empty)] // a term is never empty
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the hash of the whole term.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns the first sixteen bytes as two little-endian numbers. A shorter term is padded with zeros.
    pub fn words(&self) -> [u64; 2] {
        self.head
    }

    /// Returns the first sixteen bytes. A shorter term is padded with zeros.
    pub fn head(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.head[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.head[1].to_le_bytes());
        bytes
    }

    /// Whether the term is longer than sixteen bytes, so that its remaining bytes must be compared too.
    pub fn is_long(&self) -> bool {
        self.len > 16
    }
}

/// Masks for the sixteen bytes of two words: `KEEP[n]` keeps the first n bytes and clears the others. This table
/// replaces a branch on the length, which would be mispredicted about half of the time.
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
    /// Returns the term `padded[start..end]`. `padded` must extend at least `PAD` bytes beyond `end`.
    #[inline]
    pub fn new(padded: &'a [u8], start: usize, end: usize) -> Self {
        let len = end - start;
        let bytes: &[u8; 16] = padded[start..start + 16].try_into().expect("sixteen bytes");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        let keep = KEEP[len.min(16)];
        let head = [word(0) & keep[0], word(8) & keep[1]];
        let mut hash = fold(head[0] ^ 0x9e37_79b9_7f4a_7c15, head[1] ^ (len as u64) << 56 ^ 0xd1b5_4a32_d192_ed03);
        let mut at = start + 16;
        while at < end {
            let rest: [u8; 8] = padded[at..at + 8].try_into().expect("eight bytes");
            let rest = u64::from_le_bytes(rest) & KEEP[(end - at).min(8)][0];
            hash = fold(hash ^ rest, 0xa076_1d64_78bd_642f);
            at += 8;
        }
        Term { bytes: &padded[start..end], key: Key { head, hash, len: len as u32 } }
    }

    /// Returns the bytes of the term.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the key of the term.
    pub fn key(&self) -> Key {
        self.key
    }
}

/// Returns the exclusive or of the two halves of the 128-bit product, which mixes both factors into all 64 bits.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}
