//! UNA: which words of a sentence are replaced, by which, and the rewritten surface.
//!
//! Every draw comes from a ChaCha8 stream whose 256-bit key is (seed, epoch, row, copy), so a row's negative
//! depends on nothing else: not on the thread, the batch, the worker or a resumed run.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::corpus::is_blank;
use crate::error::{Error, Result};
use crate::index::Index;
use crate::table::{Key, PAD, TermTable};
use crate::tokenize::{Scratch, lower_cased};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surface {
    /// Only replaced words change; spacing, punctuation and case stay.
    Keep,
    /// Lower-cased terms joined by spaces, as published.
    Plain,
}

impl Surface {
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "keep" => Ok(Surface::Keep),
            "plain" => Ok(Surface::Plain),
            _ => Err(Error::invalid(
                "--surface",
                format!("{name:?} is unknown; choose keep or plain"),
            )),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub epoch: u64,
    /// Which of a row's several negatives this is.
    pub copy: u64,
    /// About the share of words replaced.
    pub beta: f64,
    /// In ranks, to either side.
    pub radius: usize,
    pub surface: Surface,
}

impl Options {
    pub fn new(index: &Index, beta: f64, radius: Option<usize>, surface: &str) -> Result<Self> {
        if !(0.0..=1.0).contains(&beta) {
            return Err(Error::invalid(
                "--beta",
                format!("{beta} is not between 0 and 1"),
            ));
        }
        if radius == Some(0) {
            return Err(Error::invalid(
                "--radius",
                "0 leaves no word to draw from; it must be at least 1",
            ));
        }
        Ok(Options {
            seed: 0,
            epoch: 0,
            copy: 0,
            beta,
            radius: radius.unwrap_or_else(|| index.default_radius()),
            surface: Surface::from_name(surface)?,
        })
    }
}

/// What happened to some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub rows: u64,
    pub blank: u64,
    /// Rows that came back as they were: blank, without a word to replace, or with no other word to take.
    pub unchanged: u64,
    pub words: u64,
    pub unseen: u64,
    pub replaced: u64,
    /// Rows with bytes that were not UTF-8, or text that was not Unicode, and were repaired.
    pub repaired: u64,
}

impl Report {
    pub fn add(&mut self, other: &Report) {
        self.rows += other.rows;
        self.blank += other.blank;
        self.unchanged += other.unchanged;
        self.words += other.words;
        self.unseen += other.unseen;
        self.replaced += other.replaced;
        self.repaired += other.repaired;
    }
}

/// One word of a sentence, seen by UNA.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Its bytes in the row.
    pub start: usize,
    pub end: usize,
    /// The same number for the same term within a row: the term's own, or V + k for the k-th unseen word.
    pub key: u32,
    /// Its rank, or the one its score would take if unseen.
    pub rank: usize,
    pub seen: bool,
    idf: f64,
    /// tf * idf in this sentence.
    pub score: f64,
    /// Probability of being replaced; 0 for a word that touches another without a boundary.
    pub p: f64,
    pub replaceable: bool,
}

/// A word that was replaced: where the new one stands in the output, and where it came from.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    pub start: usize,
    pub end: usize,
    pub word: usize,
    pub new_rank: usize,
}

/// A term of the row in hand, before it is looked up.
#[derive(Clone, Copy, Debug)]
struct Token {
    start: usize,
    end: usize,
    key: Key,
    /// Where its bytes lie in `long`, if the key is not all of it.
    long: usize,
}

/// A word that is to be replaced, and where the search for its replacement stands.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    word: usize,
    aim: Aim,
}

/// Synthesises negatives on one thread; keeps its buffers between rows.
pub struct Augmenter<'a> {
    index: &'a Index,
    options: Options,
    scratch: Scratch,
    tokens: Vec<Token>,
    /// Terms longer than a key, padded.
    long: Vec<u8>,
    /// What stands at each token's first place in the table, and whether that is the token.
    slots: Vec<(u64, bool)>,
    keys: Vec<u32>,
    unseen: TermTable<()>,
    chosen: Vec<Chosen>,
    /// Of the last row.
    pub words: Vec<Word>,
    pub replacements: Vec<Replacement>,
    /// All words weigh the same: one of them, drawn at random, is replaced whatever its p.
    pub all_equal: bool,
    pub report: Report,
}

impl<'a> Augmenter<'a> {
    pub fn new(index: &'a Index, options: Options) -> Self {
        Augmenter {
            index,
            options,
            scratch: Scratch::default(),
            tokens: Vec::new(),
            long: Vec::new(),
            slots: Vec::new(),
            keys: Vec::new(),
            unseen: TermTable::with_capacity(0),
            chosen: Vec::new(),
            words: Vec::new(),
            replacements: Vec::new(),
            all_equal: false,
            report: Report::default(),
        }
    }

    /// Appends the negative of `text` to `out`, as UTF-8.
    ///
    /// In passes over the sentence's words, since each step of a draw waits for memory: done word by word the waits
    /// add up, done pass by pass they overlap.
    pub fn augment(&mut self, text: &str, row: u64, out: &mut Vec<u8>) {
        self.weigh(text);
        self.choose(row);
        for chosen in &mut self.chosen {
            self.index.refine(&mut chosen.aim);
        }
        self.replacements.clear();
        self.replacements
            .extend(self.chosen.iter().map(|chosen| Replacement {
                start: 0,
                end: 0,
                word: chosen.word,
                new_rank: self.index.hit(&chosen.aim),
            }));
        for new in &mut self.replacements {
            new.end = self.index.bytes_at(new.new_rank).len(); // sets its text on the way from memory
        }
        match self.options.surface {
            Surface::Keep => self.write_kept(text, out),
            Surface::Plain => self.write_plain(text, out),
        }
        self.tally(text);
    }

    /// Draws which words are replaced, and the number that decides by which.
    fn choose(&mut self, row: u64) {
        let Options {
            seed,
            epoch,
            copy,
            radius,
            ..
        } = self.options;
        let mut rng = keyed(seed, epoch, row, copy);
        let forced = if self.all_equal {
            let choices = self.words.iter().filter(|word| word.replaceable).count();
            Some((uniform(&mut rng) * choices as f64) as usize)
        } else {
            None
        };
        self.chosen.clear();
        let replaceable = self
            .words
            .iter()
            .enumerate()
            .filter(|(_, word)| word.replaceable);
        for (nth, (w, word)) in replaceable.enumerate() {
            if uniform(&mut rng) < word.p || forced == Some(nth) {
                let u = uniform(&mut rng);
                let aim = self.index.aim(word.rank, word.seen, radius, u);
                self.chosen.extend(aim.map(|aim| Chosen { word: w, aim }));
            }
        }
    }

    fn write_kept(&mut self, text: &str, out: &mut Vec<u8>) {
        let (begin, mut copied) = (out.len(), 0);
        for new in &mut self.replacements {
            let Word { start, end, .. } = self.words[new.word];
            out.extend_from_slice(&text.as_bytes()[copied..start]);
            new.start = out.len() - begin;
            push_cased(self.index.bytes_at(new.new_rank), &text[start..end], out);
            new.end = out.len() - begin;
            copied = end;
        }
        out.extend_from_slice(&text.as_bytes()[copied..]);
    }

    fn write_plain(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.replacements.is_empty() {
            out.extend_from_slice(text.as_bytes());
            return;
        }
        let begin = out.len();
        let mut replacements = self.replacements.iter_mut().peekable();
        for (w, word) in self.words.iter().enumerate() {
            if w > 0 {
                out.push(b' ');
            }
            let start = out.len() - begin;
            if let Some(new) = replacements.next_if(|new| new.word == w) {
                out.extend_from_slice(self.index.bytes_at(new.new_rank));
                (new.start, new.end) = (start, out.len() - begin);
            } else if word.seen {
                out.extend_from_slice(self.index.term(word.key as usize).as_bytes());
            } else {
                out.extend_from_slice(text[word.start..word.end].to_lowercase().as_bytes());
            }
        }
    }

    fn tally(&mut self, text: &str) {
        let report = &mut self.report;
        report.rows += 1;
        report.words += self.words.len() as u64;
        report.unseen += self.words.iter().filter(|word| !word.seen).count() as u64;
        report.replaced += self.replacements.len() as u64;
        report.unchanged += u64::from(self.replacements.is_empty());
        report.blank += u64::from(self.words.is_empty() && is_blank(text));
    }

    /// Finds the words of `text`, their scores, ranks and probabilities.
    pub fn weigh(&mut self, text: &str) {
        self.look_up(text);
        let Augmenter {
            index,
            words,
            keys,
            options,
            ..
        } = self;
        let length = keys.len() as u32;
        let once = index.score(1.0, 1, length.max(1));
        let counted = CountKeys::new(keys);
        for word in words.iter_mut() {
            let count = counted.of(word.key);
            word.score = if count == 1 {
                once * word.idf
            } else {
                index.score(word.idf, count, length)
            };
            if !word.seen {
                word.rank = index.rank_of_score(word.score);
            }
        }
        self.all_equal = set_probabilities(words, options.beta);
    }

    /// Fills `words` and `keys`: three passes, so that the waits for the table overlap.
    fn look_up(&mut self, text: &str) {
        let Augmenter {
            index,
            scratch,
            tokens,
            long,
            slots,
            words,
            unseen,
            keys,
            options,
            ..
        } = self;
        tokens.clear();
        long.clear();
        index.tokenizer.for_each(text, scratch, |start, end, term| {
            let at = long.len();
            if term.key().is_long() {
                long.extend_from_slice(term.bytes());
                long.extend_from_slice(&[0; PAD]);
            }
            tokens.push(Token {
                start,
                end,
                key: term.key(),
                long: at,
            });
        });
        slots.clear();
        slots.extend(
            tokens
                .iter()
                .map(|token| (index.table.first_slot(&token.key), false)),
        );
        for ((slot, found), token) in slots.iter_mut().zip(tokens.iter()) {
            *found = index.table.is_at_first(*slot, &token.key);
        }

        words.clear();
        keys.clear();
        if !unseen.is_empty() {
            *unseen = TermTable::with_capacity(0);
        }
        let unseen_idf = index.unseen_idf();
        let keep = options.surface == Surface::Keep;
        for (token, &(slot, found)) in tokens.iter().zip(slots.iter()) {
            let Token {
                start,
                end,
                key,
                long: at,
            } = *token;
            let known = if found {
                Some(index.table.value_at_first(slot))
            } else {
                let rest = if key.is_long() {
                    &long[at..at + key.len()]
                } else {
                    &[]
                };
                index.table.resolve(slot, &key, rest)
            };
            let (key, rank, idf) = match known {
                Some(known) => (known.term, known.rank as usize, known.idf),
                None => {
                    let number =
                        unseen.intern(&lower_cased(&text[start..end], &mut scratch.slow), || ());
                    ((index.len() + number) as u32, 0, unseen_idf)
                }
            };
            keys.push(key);
            words.push(Word {
                start,
                end,
                key,
                rank,
                idf,
                seen: known.is_some(),
                score: 0.0,
                p: 0.0,
                replaceable: !keep || stands_alone(text, start, end),
            });
        }
    }

    /// A fresh draw for word `w` of the last row, for showing what could take its place.
    pub fn sample(&self, w: usize, u: f64) -> Option<&'a str> {
        let word = &self.words[w];
        let new = self
            .index
            .draw(word.rank, word.seen, self.options.radius, u)?;
        Some(self.index.term(self.index.by_rank[new] as usize))
    }
}

/// p_i = beta * n * (s_i - min s) / sum_j (s_j - min s), cut at 1, over the n replaceable words. If none reaches 1,
/// every word that holds the largest is set to 1 (the released code: the first of them), so that a sentence changes.
/// Equal scores give p_i = beta, and true: one word is to be forced.
fn set_probabilities(words: &mut [Word], beta: f64) -> bool {
    let free = || words.iter().filter(|word| word.replaceable);
    let n = free().count();
    if n == 0 {
        return false;
    }
    let (low, high) = free().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), word| {
        (low.min(word.score), high.max(word.score))
    });
    let sum: f64 = free().map(|word| word.score - low).sum();
    let all_equal = high == low;
    let scale = beta * n as f64 / sum;
    let force = !all_equal && scale * (high - low) < 1.0;
    for word in words.iter_mut().filter(|word| word.replaceable) {
        word.p = if all_equal {
            beta
        } else if force && word.score == high {
            1.0
        } else {
            (scale * (word.score - low)).min(1.0)
        };
    }
    all_equal
}

/// How often a key stands in a row: by looking at all of them where they are few, else in sorted order.
struct CountKeys<'a> {
    keys: &'a mut [u32],
    sorted: bool,
}

impl<'a> CountKeys<'a> {
    fn new(keys: &'a mut [u32]) -> Self {
        let sorted = keys.len() > 64;
        if sorted {
            keys.sort_unstable();
        }
        CountKeys { keys, sorted }
    }

    fn of(&self, key: u32) -> u32 {
        if self.sorted {
            let from = self.keys.partition_point(|&k| k < key);
            self.keys[from..].partition_point(|&k| k == key) as u32
        } else {
            self.keys.iter().map(|&k| u32::from(k == key)).sum()
        }
    }
}

/// A search in the prefix sums: the last rank of `from..to` whose interval begins at or before `target`.
#[derive(Clone, Copy, Debug)]
struct Aim {
    from: usize,
    to: usize,
    target: f64,
    guess: usize,
}

impl Aim {
    fn clamp(&self, place: f64) -> usize {
        place.clamp(self.from as f64, (self.to - 1) as f64) as usize
    }
}

impl Index {
    /// Draws a rank from `rank - r ..= rank + r` with probability proportional to the maximum score, never `rank`
    /// itself; an unseen word (`seen` false) stands between ranks and has r to either side. `u` is uniform in
    /// [0, 1). None if there is no other term.
    pub fn draw(&self, rank: usize, seen: bool, radius: usize, u: f64) -> Option<usize> {
        let mut aim = self.aim(rank, seen, radius, u)?;
        self.refine(&mut aim);
        Some(self.hit(&aim))
    }

    /// The draw's first third: which side of the word's own interval is meant, and a guess where on it.
    ///
    /// Neighbours in rank weigh nearly the same, so a straight line from end to end is a guess that is a few places
    /// off; `refine` corrects it by the slope there, and `hit` walks the rest. A binary search touches a dozen cache
    /// lines instead of two or three.
    fn aim(&self, rank: usize, seen: bool, radius: usize, u: f64) -> Option<Aim> {
        let after = rank + usize::from(seen);
        let low = rank.saturating_sub(radius);
        let high = after.saturating_add(radius).min(self.len());
        let (left_count, right_count) = (rank - low, high - after);
        if left_count + right_count == 0 {
            return None;
        }
        let [p_low, p_rank, p_after, p_high] =
            [low, rank, after, high].map(|place| self.prefix[place]);
        let (left, right) = (p_rank - p_low, p_high - p_after);
        let mass = left + right;
        if mass <= 0.0 {
            // No mass to follow: uniform over the window, told as a search that has ended.
            let k = (u * (left_count + right_count) as f64) as usize;
            let place = if k < left_count {
                low + k
            } else {
                (after + k - left_count).min(high - 1)
            };
            return Some(Aim {
                from: place,
                to: place + 1,
                target: f64::INFINITY,
                guess: place,
            });
        }
        let at = u * mass;
        let (from, to, base, side, at) = if (at < left || right_count == 0) && left_count > 0 {
            (low, rank, p_low, left, at)
        } else {
            (after, high, p_after, right, (at - left).max(0.0))
        };
        let mut aim = Aim {
            from,
            to,
            target: base + at,
            guess: from,
        };
        aim.guess = aim.clamp(from as f64 + at / side * (to - from) as f64);
        Some(aim)
    }

    fn refine(&self, aim: &mut Aim) {
        let before = self.prefix[aim.guess];
        let own = self.prefix[aim.guess + 1] - before;
        if own > 0.0 {
            aim.guess = aim.clamp(aim.guess as f64 + (aim.target - before) / own);
        }
    }

    fn hit(&self, aim: &Aim) -> usize {
        let Aim {
            from,
            to,
            target,
            guess,
        } = *aim;
        let prefix = &self.prefix[..=to];
        let mut found = guess;
        for _ in 0..16 {
            if prefix[found] > target && found > from {
                found -= 1;
            } else if found + 1 < to && prefix[found + 1] <= target {
                found += 1;
            } else {
                return found;
            }
        }
        // Steep places: the heaviest terms of all.
        from + prefix[from + 1..to].partition_point(|&sum| sum <= target)
    }
}

fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    to_unit(rng.next_u64())
}

/// The upper 53 bits as a number in [0, 1).
pub fn to_unit(bits: u64) -> f64 {
    (bits >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
}

fn keyed(seed: u64, epoch: u64, row: u64, stream: u64) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (part, value) in key.chunks_exact_mut(8).zip([seed, epoch, row, stream]) {
        part.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// 64 random bits for each row: the source of every other random choice (shuffling, held-out rows, mixing
/// partners). `stream` keeps them apart from each other and from the negatives, which use small numbers.
pub fn random_bits(seed: u64, epoch: u64, rows: &[u64], stream: u64) -> Vec<u64> {
    rows.iter()
        .map(|&row| keyed(seed, epoch, row, stream).next_u64())
        .collect()
}

/// Neither neighbour is a word character: "do" of "don't" cut in two is not replaced ("housen't").
fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    let bytes = text.as_bytes();
    let before = match start.checked_sub(1).map(|i| bytes[i]) {
        None => false,
        Some(b) if b.is_ascii() => joins(b.into()),
        Some(_) => text[..start].chars().next_back().is_some_and(joins),
    };
    let after = match bytes.get(end) {
        None => false,
        Some(&b) if b.is_ascii() => joins(b.into()),
        Some(_) => text[end..].chars().next().is_some_and(joins),
    };
    !before && !after
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    Lower,
    Capitalised,
    Upper,
}

/// The case a replacement takes over. "I" (and "I'm", "I'll") and MixedCase words ask for lower case.
fn case_of(word: &str) -> Case {
    if word.as_bytes().first().is_some_and(u8::is_ascii_lowercase) {
        return Case::Lower;
    }
    if word == "I" || word.starts_with("I'") || word.starts_with("I\u{2019}") {
        return Case::Lower;
    }
    let mut cased = word
        .chars()
        .filter(|c| c.is_uppercase() || c.is_lowercase());
    if !cased.next().is_some_and(char::is_uppercase) {
        return Case::Lower;
    }
    let (mut upper, mut lower) = (0, 0);
    for c in cased {
        if c.is_uppercase() {
            upper += 1;
        } else {
            lower += 1;
        }
    }
    match (upper, lower) {
        (0, _) => Case::Capitalised,
        (_, 0) => Case::Upper,
        _ => Case::Lower,
    }
}

/// Appends `term`, which is UTF-8, in the case of the word it replaces.
fn push_cased(term: &[u8], old: &str, out: &mut Vec<u8>) {
    let start = out.len();
    let case = case_of(old);
    out.extend_from_slice(term);
    if case == Case::Lower {
        return;
    }
    if term.is_ascii() {
        let new = &mut out[start..];
        match case {
            Case::Upper => new.make_ascii_uppercase(),
            _ => {
                if let Some(first) = new.iter_mut().find(|b| b.is_ascii_alphabetic()) {
                    first.make_ascii_uppercase();
                }
            }
        }
    } else if let Ok(text) = std::str::from_utf8(term) {
        let upper = match case {
            Case::Upper => text.to_uppercase(),
            _ => {
                let at = text.find(char::is_alphabetic).unwrap_or(0);
                let mut rest = text[at..].chars();
                let first: String = rest
                    .next()
                    .into_iter()
                    .flat_map(char::to_uppercase)
                    .collect();
                [&text[..at], &first, rest.as_str()].concat()
            }
        };
        out.truncate(start);
        out.extend_from_slice(upper.as_bytes());
    }
    // "SS" replaced by "ß" in capitals is "SS" again.
    if &out[start..] == old.as_bytes() {
        out.truncate(start);
        out.extend_from_slice(term);
    }
}
