//! The hash table of an open index, which maps terms to ranks and idf. It is built once, then queried millions of times
//! per second.
//!
//! Open addressing with two slots per cache line. A slot holds everything that a look-up compares and returns, so most
//! look-ups touch a single cache line. A look-up in [`TermTable`](crate::index::term_table::TermTable), which must grow
//! while terms are counted, touches two.

use crate::text::term_key::Key;

/// The result of a look-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    pub idf: f64,
    pub rank: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(32))]
struct Slot {
    head: [u64; 2],
    idf: f64,
    rank: u32,
    /// Length of the whole term in bytes; 0 marks an empty slot.
    len: u32,
}

#[derive(Debug)]
pub struct Lookup {
    slots: Vec<Slot>,
}

impl Lookup {
    /// Returns an empty table for `terms` terms, in which at most 17 of 20 slots will be occupied. This is fuller than
    /// usual, but a small table fits in the cache, and frequent terms, which are inserted first, rarely collide.
    pub fn with_capacity(terms: usize) -> Self {
        let size = (terms * 20 / 17 + 1).next_power_of_two().max(16);
        let mut slots = Vec::with_capacity(size);
        on_huge_pages(&slots);
        slots.resize(size, Slot::default());
        Lookup { slots }
    }

    /// Inserts terms that are not in the table yet. Terms that are inserted first are found fastest.
    ///
    /// The first slots of all terms are read before any slot is written, so that the memory accesses overlap.
    pub fn insert_all(&mut self, terms: &[(Key, Known)]) {
        let mask = self.slots.len() - 1;
        let slot_of = |key: &Key| key.hash() as usize & mask;
        let touched: u32 = terms.iter().map(|(key, _)| self.slots[slot_of(key)].len).sum();
        std::hint::black_box(touched);
        for (key, known) in terms {
            self.insert(key, known);
        }
    }

    fn insert(&mut self, key: &Key, known: &Known) {
        let mask = self.slots.len() - 1;
        let mut at = key.hash() as usize & mask;
        while self.slots[at].len != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = Slot { head: key.words(), idf: known.idf, rank: known.rank, len: key.len() as u32 };
    }

    /// First step of a look-up: returns the content of the slot to which the term is hashed, and true if that slot is
    /// certain to belong to the term. For most terms it is certain; a term longer than sixteen bytes always needs the
    /// second step. The first step is a single load that does not depend on another load. A caller with many terms does
    /// the first step for all of them before any second step, so that the memory accesses overlap.
    #[inline]
    pub fn first(&self, key: &Key) -> (Known, bool) {
        let slot = &self.slots[key.hash() as usize & (self.slots.len() - 1)];
        let known = Known { idf: slot.idf, rank: slot.rank };
        let same = slot.head == key.words() && slot.len == key.len() as u32;
        (known, same & !key.is_long())
    }

    /// Second step of a look-up, for a term that [`first`](Self::first) did not find. `is_term(rank)` returns whether
    /// the term of this rank is the one to be found; it is called only for terms longer than sixteen bytes.
    pub fn find(&self, key: &Key, is_term: impl Fn(u32) -> bool) -> Option<Known> {
        let mask = self.slots.len() - 1;
        let mut at = key.hash() as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.len == 0 {
                return None;
            }
            if slot.head == key.words() && slot.len == key.len() as u32 && (!key.is_long() || is_term(slot.rank)) {
                return Some(Known { idf: slot.idf, rank: slot.rank });
            }
            at = (at + 1) & mask;
        }
    }
}

/// Advises the kernel to use pages of 2 MiB for the memory of a vector that has not been written yet. With pages of
/// 4 KiB, look-ups at random positions of a large table would miss the TLB as often as the data cache.
#[cfg(target_os = "linux")]
pub(crate) fn on_huge_pages<T>(buffer: &Vec<T>) {
    const PAGE: usize = 4096;
    let bytes = buffer.capacity() * size_of::<T>();
    if bytes < 1 << 21 {
        return;
    }
    let (start, end) = (buffer.as_ptr().addr(), buffer.as_ptr().addr() + bytes);
    let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
    let address = buffer.as_ptr().wrapping_byte_add(first - start);
    // SAFETY: `first..last` are whole pages inside an allocation that `buffer` owns. MADV_HUGEPAGE is a hint about how
    // the kernel may back them; it changes neither their content nor their access rights, whatever it returns.
    unsafe {
        libc::madvise(address.cast_mut().cast(), last - first, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn on_huge_pages<T>(_buffer: &Vec<T>) {}
