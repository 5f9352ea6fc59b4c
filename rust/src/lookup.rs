//! From term to rank and idf, built once and asked millions of times a second.
//!
//! Open addressing whose slots hold all that a look-up compares and yields, two to a cache line, so that most look-ups
//! touch one line and nothing else. [`crate::table::TermTable`], which grows while it counts, takes two.

use crate::table::Key;

/// What a look-up yields.
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
    /// Of the whole term; 0 is an empty slot.
    len: u32,
}

#[derive(Debug)]
pub struct Lookup {
    slots: Vec<Slot>,
}

impl Lookup {
    /// Room for so many terms: up to 17 of 20 slots are taken. Fuller than usual, since the frequent terms stand in their
    /// first places anyhow, and a small table stays in the cache.
    pub fn with_capacity(terms: usize) -> Self {
        let size = (terms * 20 / 17 + 1).next_power_of_two().max(16);
        let mut slots = Vec::with_capacity(size);
        on_huge_pages(&slots);
        slots.resize(size, Slot::default());
        Lookup { slots }
    }

    /// Adds terms that are not there yet, a few at a time. Those added first are found fastest.
    ///
    /// Their places are looked at one after the other before the first is taken, so that the waits for memory overlap.
    pub fn insert_all(&mut self, terms: &[(Key, Known)]) {
        let mask = self.slots.len() - 1;
        let place = |key: &Key| key.hash() as usize & mask;
        let touched: u32 = terms
            .iter()
            .map(|(key, _)| self.slots[place(key)].len)
            .sum();
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
        self.slots[at] = Slot {
            head: key.words(),
            idf: known.idf,
            rank: known.rank,
            len: key.len() as u32,
        };
    }

    /// The first step of a look-up: what stands at the term's first place, and whether that is the term, as it nearly
    /// always is. One load that depends on nothing else: a caller with many terms does all first steps before any
    /// second one, and the memory system works on many at once.
    #[inline]
    pub fn first(&self, key: &Key) -> (Known, bool) {
        let slot = &self.slots[key.hash() as usize & (self.slots.len() - 1)];
        let known = Known {
            idf: slot.idf,
            rank: slot.rank,
        };
        let same = slot.head == key.words() && slot.len == key.len() as u32;
        (known, same & !key.is_long())
    }

    /// The second step, where the first did not find it; `is_term` says whether the long term of a rank is this one.
    pub fn find(&self, key: &Key, is_term: impl Fn(u32) -> bool) -> Option<Known> {
        let mask = self.slots.len() - 1;
        let mut at = key.hash() as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.len == 0 {
                return None;
            }
            if slot.head == key.words()
                && slot.len == key.len() as u32
                && (!key.is_long() || is_term(slot.rank))
            {
                return Some(Known {
                    idf: slot.idf,
                    rank: slot.rank,
                });
            }
            at = (at + 1) & mask;
        }
    }
}

/// Asks for pages of 2 MiB under the room of a vector that has not been written to: look-ups at random places of a large
/// table otherwise miss the translation cache as often as the data's own.
#[cfg(target_os = "linux")]
pub(crate) fn on_huge_pages<T>(room: &Vec<T>) {
    const PAGE: usize = 4096;
    let bytes = room.capacity() * size_of::<T>();
    if bytes < 1 << 21 {
        return;
    }
    let (start, end) = (room.as_ptr().addr(), room.as_ptr().addr() + bytes);
    let (first, last) = (start.next_multiple_of(PAGE), end / PAGE * PAGE);
    let address = room.as_ptr().wrapping_byte_add(first - start);
    // SAFETY: `first..last` are whole pages inside an allocation that `room` owns, and MADV_HUGEPAGE is a hint about
    // how the kernel may back them: it changes no byte and no right of access, whatever it answers.
    unsafe {
        libc::madvise(address.cast_mut().cast(), last - first, libc::MADV_HUGEPAGE);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn on_huge_pages<T>(_room: &Vec<T>) {}
