//! Selects the words of a sentence that are replaced, draws their replacements, and writes the new sentence.
//!
//! All random numbers for a row come from a ChaCha8 stream whose 256-bit key is (seed, epoch, row, copy). The negative
//! of the row therefore does not depend on the thread, the batch or the worker, or on whether a run was resumed.

use crate::index::Index;
use crate::index::formula::tf;
use crate::index::lookup::Known;
use crate::index::term_table::TermTable;
use crate::random::{keyed, uniform};
use crate::text::row::is_blank;
use crate::text::term_key::{Key, PAD, Term};
use crate::text::tokenize::{Rule, Scratch};
use crate::text::wordpieces;
use crate::una::casing::{stands_alone, take_case};
use crate::una::options::{Options, OutputForm, ReplaceWith, Report};
use crate::una::radius::RankSearch;
use crate::una::replacement_probability::set_probabilities;
use crate::una::word::Word;

/// A word that was replaced.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// Start and end of the new word in the output, in bytes.
    pub start: usize,
    pub end: usize,
    /// Index of the old word among the words of the sentence.
    pub word: usize,
    pub new_rank: usize,
}

/// A term of the current row before it is looked up.
#[derive(Clone, Copy, Debug)]
struct Token {
    start: usize,
    end: usize,
    key: Key,
    /// Offset of the term's bytes in `Augmenter::long`; used only if the key does not contain the whole term.
    long: usize,
}

impl Token {
    fn term<'a>(&self, long: &'a [u8], short: &'a mut [u8; 2 * PAD]) -> Term<'a> {
        if self.key.is_long() {
            Term::new(long, self.long, self.long + self.key.len())
        } else {
            short[..PAD].copy_from_slice(&self.key.head());
            Term::new(short, 0, self.key.len())
        }
    }
}

/// A word that is to be replaced, and the search for its replacement.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    word: usize,
    search: RankSearch,
}

/// Generates synthetic sentences on one thread. Its buffers are reused between rows.
pub struct Augmenter<'a> {
    index: &'a Index,
    options: Options,
    scratch: Scratch,
    tokens: Vec<Token>,
    /// The terms of the last row that are longer than sixteen bytes, each padded.
    long: Vec<u8>,
    /// Buffer for one term of at most sixteen bytes.
    short: [u8; 2 * PAD],
    /// For each token, the result of the first step of the look-up
    /// ([`Lookup::first`](crate::index::lookup::Lookup::first)).
    firsts: Vec<(Known, bool)>,
    /// `Word::key` of each word.
    keys: Vec<u32>,
    unseen: TermTable<()>,
    chosen: Vec<Chosen>,
    /// The words of the last row.
    pub words: Vec<Word>,
    /// The words that the last call of `rewrite` replaced.
    pub replacements: Vec<Replacement>,
    /// Whether one word of the last row, drawn at random, is replaced regardless of its p.
    pub force_one: bool,
    /// Totals over all rows that were rewritten.
    pub report: Report,
}

impl<'a> Augmenter<'a> {
    /// Returns an augmenter that has not processed any row.
    pub fn new(index: &'a Index, options: Options) -> Self {
        Augmenter {
            index,
            options,
            scratch: Scratch::default(),
            tokens: Vec::new(),
            long: Vec::new(),
            short: [0; 2 * PAD],
            firsts: Vec::new(),
            keys: Vec::new(),
            unseen: TermTable::with_capacity(0),
            chosen: Vec::new(),
            words: Vec::new(),
            replacements: Vec::new(),
            force_one: false,
            report: Report::default(),
        }
    }

    /// Appends the synthetic sentence for `text` to `out`, as UTF-8.
    ///
    /// Each step is done for all words before the next step begins. Each step waits for memory; when it is done for all
    /// words in turn, the waits for different words overlap instead of adding up.
    pub fn augment(&mut self, text: &str, row: u64, out: &mut Vec<u8>) {
        self.weigh(text);
        self.rewrite(text, row, self.options.copy, out);
    }

    /// Does the same as [`augment`](Self::augment), but `text` must be the text last passed to [`weigh`](Self::weigh).
    /// A text may be rewritten more than once.
    pub fn rewrite(&mut self, text: &str, row: u64, copy: u64, out: &mut Vec<u8>) {
        let text = self.index.tokenizer.text(text);
        self.choose(row, copy);
        for chosen in &mut self.chosen {
            chosen.search.improve_guess(self.index);
        }
        self.replacements.clear();
        self.replacements.extend(self.chosen.iter().map(|chosen| Replacement {
            start: 0,
            end: 0,
            word: chosen.word,
            new_rank: chosen.search.finish(self.index),
        }));
        for new in &mut self.replacements {
            new.end = self.index.bytes_at(new.new_rank).len(); // starts loading the text from memory
        }
        match self.options.surface {
            OutputForm::Keep => self.write_kept(text, out),
            OutputForm::Plain => self.write_plain(text, out),
        }
        self.tally(text);
    }

    /// Draws the words to replace, and starts the search for each replacement.
    fn choose(&mut self, row: u64, copy: u64) {
        let Options { seed, epoch, .. } = self.options;
        let mut rng = keyed(seed, epoch, row, copy);
        let forced = if self.force_one {
            let choices = self.words.iter().filter(|word| word.replaceable).count();
            Some((uniform(&mut rng) * choices as f64) as usize)
        } else {
            None
        };
        self.chosen.clear();
        let replaceable = self.words.iter().enumerate().filter(|(_, word)| word.replaceable);
        for (nth, (w, word)) in replaceable.enumerate() {
            if uniform(&mut rng) < word.p || forced == Some(nth) {
                let u = uniform(&mut rng);
                let search = start_search(self.index, &self.options, word, u);
                self.chosen.extend(search.map(|search| Chosen { word: w, search }));
            }
        }
    }

    /// Writes the text with the chosen words replaced and everything else unchanged.
    fn write_kept(&mut self, text: &str, out: &mut Vec<u8>) {
        let (begin, mut copied) = (out.len(), 0);
        for new in &mut self.replacements {
            let Word { start, end, .. } = self.words[new.word];
            push_few(&text.as_bytes()[copied..], start - copied, out);
            let at = out.len();
            self.index.push_term(new.new_rank, out);
            if self.index.tokenizer.rule == Rule::Wordpieces {
                if self.words[new.word].class == wordpieces::CONTINUATION {
                    out.drain(at..at + wordpieces::PREFIX.len());
                }
            } else {
                let term = self.index.bytes_at(new.new_rank);
                take_case(term, &text[start..end], out, at);
            }
            (new.start, new.end) = (at - begin, out.len() - begin);
            copied = end;
        }
        out.extend_from_slice(&text.as_bytes()[copied..]);
    }

    /// Writes the terms joined by spaces, or the text itself if nothing is replaced.
    fn write_plain(&mut self, text: &str, out: &mut Vec<u8>) {
        if self.replacements.is_empty() {
            out.extend_from_slice(text.as_bytes());
            return;
        }
        let begin = out.len();
        let mut replacements = self.replacements.iter_mut().peekable();
        for (w, token) in self.tokens.iter().enumerate() {
            if w > 0 {
                out.push(b' ');
            }
            let start = out.len() - begin;
            if let Some(new) = replacements.next_if(|new| new.word == w) {
                self.index.push_term(new.new_rank, out);
                (new.start, new.end) = (start, out.len() - begin);
            } else {
                out.extend_from_slice(token.term(&self.long, &mut self.short).bytes());
            }
        }
    }

    /// Adds the last row to the report.
    fn tally(&mut self, text: &str) {
        let report = &mut self.report;
        report.rows += 1;
        report.words += self.words.len() as u64;
        report.unseen += self.words.iter().filter(|word| !word.seen).count() as u64;
        report.replaced += self.replacements.len() as u64;
        report.unchanged += u64::from(self.replacements.is_empty());
        report.blank += u64::from(self.words.is_empty() && is_blank(text));
    }

    /// Finds the words of `text`, and computes their scores, ranks and probabilities.
    pub fn weigh(&mut self, text: &str) {
        self.look_up(text);
        let Augmenter { index, words, keys, options, .. } = self;
        let length = keys.len() as u32;
        let mut tf_by_count = [0.0; 16]; // each value is computed when it is first needed
        let counts = KeyCounts::new(keys);
        for word in words.iter_mut() {
            let count = counts.of(word.key);
            let tf = match tf_by_count.get_mut(count as usize) {
                Some(tf) if *tf > 0.0 => *tf,
                slot => {
                    let tf = tf(count, length);
                    slot.into_iter().for_each(|slot| *slot = tf);
                    tf
                }
            };
            word.score = tf * word.idf;
            if !word.seen {
                word.rank = index.rank_of_score(word.score, word.class);
            }
        }
        self.force_one = set_probabilities(words, options);
    }

    /// Fills `keys` and `words`. The scores, the probabilities, and the ranks of unseen words are left at 0. Each step
    /// is done for all words before the next step begins, so that the accesses to the table overlap.
    fn look_up(&mut self, text: &str) {
        let Augmenter { index, scratch, tokens, long, short, firsts, words, unseen, keys, options, .. } = self;
        tokens.clear();
        long.clear();
        index.tokenizer.for_each(text, scratch, |start, end, term| {
            let at = long.len();
            if term.key().is_long() {
                long.extend_from_slice(term.bytes());
                long.extend_from_slice(&[0; PAD]);
            }
            tokens.push(Token { start, end, key: term.key(), long: at });
        });
        firsts.clear();
        firsts.extend(tokens.iter().map(|token| index.lookup.first(&token.key)));

        words.clear();
        keys.clear();
        if !unseen.is_empty() {
            *unseen = TermTable::with_capacity(0);
        }
        let keep = options.surface == OutputForm::Keep;
        let pieces = index.tokenizer.rule == Rule::Wordpieces;
        words.extend(tokens.iter().zip(firsts.iter()).enumerate().map(|(nth, (token, &(first, found)))| {
            let Token { start, end, key, long: at } = *token;
            let head = &key.head()[..key.len().min(PAD)];
            let class = index.tokenizer.class(head);
            let known = if found {
                Some(first)
            } else {
                let rest = if key.is_long() { &long[at..at + key.len()] } else { &[] };
                index.find(&key, rest)
            };
            let (key, rank, idf) = match known {
                Some(Known { idf, rank }) => (rank, rank as usize, idf),
                None => {
                    let term = token.term(long, short);
                    let number = unseen.intern(&term, || ());
                    let idf = index.idf_without_rank(&term);
                    ((index.len() + number) as u32, 0, idf)
                }
            };
            Word {
                start,
                end,
                key,
                rank,
                idf,
                seen: known.is_some(),
                score: 0.0,
                p: 0.0,
                class,
                replaceable: match pieces {
                    true => apart(tokens, nth),
                    false => !keep || stands_alone(text, start, end),
                },
            }
        }));
        keys.extend(words.iter().map(|word| word.key));
    }

    /// Draws a term that could replace word `w` of the last row. `u` is uniform in [0, 1).
    pub fn sample(&self, w: usize, u: f64) -> Option<&'a str> {
        let mut search = start_search(self.index, &self.options, &self.words[w], u)?;
        search.improve_guess(self.index);
        let new = search.finish(self.index);
        Some(self.index.term(self.index.term_at(new)))
    }
}

/// Appends the first `len` bytes of `from` to `out`. A short piece is copied as sixteen bytes and then truncated, as in
/// `Index::push_term`.
#[inline]
fn push_few(from: &[u8], len: usize, out: &mut Vec<u8>) {
    match from.first_chunk::<16>() {
        Some(few) if len <= few.len() => {
            let end = out.len() + len;
            out.extend_from_slice(few);
            out.truncate(end);
        }
        _ => out.extend_from_slice(&from[..len]),
    }
}

/// Whether piece number `nth` has characters of the text, and shares none with the pieces before and after it.
fn apart(tokens: &[Token], nth: usize) -> bool {
    let Token { start, end, .. } = tokens[nth];
    let before = nth.checked_sub(1).map_or(0, |before| tokens[before].end);
    let after = tokens.get(nth + 1).map_or(end, |after| after.start);
    before <= start && start < end && end <= after
}

/// Starts the search for the replacement of a word; returns `None` if the index has no other term.
fn start_search(index: &Index, options: &Options, word: &Word, u: f64) -> Option<RankSearch> {
    match options.replace_with {
        ReplaceWith::Radius => RankSearch::within_radius(index, word.rank, word.seen, word.class, options.radius, u),
        ReplaceWith::Random => RankSearch::anywhere(index, word.rank, word.seen, word.class, u),
    }
}

/// Counts how often each key occurs in a row.
///
/// Usually, no other key in the row has the same lowest byte, and the count is therefore 1. Otherwise, the key is
/// counted by a linear search if the row has at most 64 keys, and by a binary search if it has more.
struct KeyCounts<'a> {
    keys: &'a mut [u32],
    by_last_byte: [u8; 256],
    sorted: bool,
}

impl<'a> KeyCounts<'a> {
    fn new(keys: &'a mut [u32]) -> Self {
        let mut by_last_byte = [0u8; 256];
        for &key in keys.iter() {
            let count = &mut by_last_byte[usize::from(key as u8)];
            *count = count.saturating_add(1);
        }
        let sorted = keys.len() > 64;
        if sorted {
            keys.sort_unstable();
        }
        KeyCounts { keys, by_last_byte, sorted }
    }

    fn of(&self, key: u32) -> u32 {
        if self.by_last_byte[usize::from(key as u8)] == 1 {
            1
        } else if self.sorted {
            let from = self.keys.partition_point(|&k| k < key);
            self.keys[from..].partition_point(|&k| k == key) as u32
        } else {
            self.keys.iter().map(|&k| u32::from(k == key)).sum()
        }
    }
}
