//! UNA: which words of a sentence are replaced, by which, and the rewritten surface.
//!
//! Every draw comes from a ChaCha8 stream whose 256-bit key is (seed, epoch, row, copy), so a row's negative
//! depends on nothing else: not on the thread, the batch, the worker or a resumed run.

use crate::corpus::is_blank;
use crate::draw::{Aim, keyed, uniform};
use crate::index::Index;
use crate::lookup::Known;
use crate::matrix::tf;
use crate::options::{Mode, Options, Report, Step2, Step3, Surface};
use crate::surface::{stands_alone, take_case};
use crate::table::{Key, PAD, Term, TermTable};
use crate::tokenize::Scratch;

/// One word of a sentence, seen by UNA.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    /// Its bytes in the row.
    pub start: usize,
    pub end: usize,
    /// The same number for the same term within a row: its rank, or V + k for the k-th unseen word.
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
    /// Terms longer than a key, padded; and room for one that is not.
    long: Vec<u8>,
    short: [u8; 2 * PAD],
    /// What stands at each token's first place in the table, and whether that is the token.
    firsts: Vec<(Known, bool)>,
    keys: Vec<u32>,
    unseen: TermTable<()>,
    chosen: Vec<Chosen>,
    /// Of the last row.
    pub words: Vec<Word>,
    pub replacements: Vec<Replacement>,
    /// No word stands out: one of them, drawn at random, is replaced whatever its p.
    pub force_one: bool,
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

    /// Appends the negative of `text` to `out`, as UTF-8.
    ///
    /// In passes over the sentence's words, since each step of a draw waits for memory: done word by word the waits
    /// add up, done pass by pass they overlap.
    pub fn augment(&mut self, text: &str, row: u64, out: &mut Vec<u8>) {
        self.weigh(text);
        self.rewrite(text, row, self.options.copy, out);
    }

    /// The same for the text that was weighed last, which may be rewritten more than once.
    pub fn rewrite(&mut self, text: &str, row: u64, copy: u64, out: &mut Vec<u8>) {
        self.choose(row, copy);
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
        let replaceable = self
            .words
            .iter()
            .enumerate()
            .filter(|(_, word)| word.replaceable);
        for (nth, (w, word)) in replaceable.enumerate() {
            if uniform(&mut rng) < word.p || forced == Some(nth) {
                let u = uniform(&mut rng);
                let aim = aim(self.index, &self.options, word, u);
                self.chosen.extend(aim.map(|aim| Chosen { word: w, aim }));
            }
        }
    }

    fn write_kept(&mut self, text: &str, out: &mut Vec<u8>) {
        let (begin, mut copied) = (out.len(), 0);
        for new in &mut self.replacements {
            let Word { start, end, .. } = self.words[new.word];
            push_few(&text.as_bytes()[copied..], start - copied, out);
            let at = out.len();
            self.index.push_term(new.new_rank, out);
            let term = self.index.bytes_at(new.new_rank);
            take_case(term, &text[start..end], out, at);
            (new.start, new.end) = (at - begin, out.len() - begin);
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
        let mut known = [0.0; 16]; // tf by count, once it was asked for
        let counted = CountKeys::new(keys);
        for word in words.iter_mut() {
            let count = counted.of(word.key);
            let tf = match known.get_mut(count as usize) {
                Some(tf) if *tf > 0.0 => *tf,
                slot => {
                    let tf = tf(count, length);
                    slot.into_iter().for_each(|known| *known = tf);
                    tf
                }
            };
            word.score = tf * word.idf;
            if !word.seen {
                word.rank = index.rank_of_score(word.score);
            }
        }
        self.force_one = set_probabilities(words, options);
    }

    /// Fills `words` and `keys`: in passes, so that the waits for the table overlap.
    fn look_up(&mut self, text: &str) {
        let Augmenter {
            index,
            scratch,
            tokens,
            long,
            short,
            firsts,
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
        firsts.clear();
        firsts.extend(tokens.iter().map(|token| index.lookup.first(&token.key)));

        words.clear();
        keys.clear();
        if !unseen.is_empty() {
            *unseen = TermTable::with_capacity(0);
        }
        let keep = options.surface == Surface::Keep;
        words.extend(
            tokens
                .iter()
                .zip(firsts.iter())
                .map(|(token, &(first, found))| {
                    let Token {
                        start,
                        end,
                        key,
                        long: at,
                    } = *token;
                    let known = if found {
                        Some(first)
                    } else {
                        let rest = if key.is_long() {
                            &long[at..at + key.len()]
                        } else {
                            &[]
                        };
                        index.find(&key, rest)
                    };
                    let (key, rank, idf) = match known {
                        Some(Known { idf, rank }) => (rank, rank as usize, idf),
                        None => {
                            let term = token.term(long, short);
                            let number = unseen.intern(&term, || ());
                            let idf = index.idf_outside(&term);
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
                        replaceable: !keep || stands_alone(text, start, end),
                    }
                }),
        );
        keys.extend(words.iter().map(|word| word.key));
    }

    /// A fresh draw for word `w` of the last row, for showing what could take its place.
    pub fn sample(&self, w: usize, u: f64) -> Option<&'a str> {
        let mut aim = aim(self.index, &self.options, &self.words[w], u)?;
        self.index.refine(&mut aim);
        let new = self.index.hit(&aim);
        Some(self.index.term(self.index.term_at(new)))
    }
}

/// Appends the first `len` bytes of `from`: few of them by a move of fixed size, as `Index::push_term`.
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

/// Where to look for a word's replacement.
fn aim(index: &Index, options: &Options, word: &Word, u: f64) -> Option<Aim> {
    match options.step3 {
        Step3::Radius => index.aim(word.rank, word.seen, options.radius, u),
        Step3::Random => index.aim_anywhere(word.rank, word.seen, u),
    }
}

/// p_i = beta * n * w_i / sum_j w_j, cut at 1, over the n replaceable words, where w is s - min s, or for positives
/// max s - s. If none reaches 1, every word that holds the largest is set to 1 (the released code: the first of them),
/// so that a sentence changes. Equal scores give p_i = beta, and true: one word is to be forced; so does step 2 at
/// random, but for the ablation of both steps, which forces nothing and leaves sentences of under three words alone.
fn set_probabilities(words: &mut [Word], options: &Options) -> bool {
    let beta = options.beta;
    let (mut n, mut low, mut high) = (0, f64::INFINITY, f64::NEG_INFINITY);
    for word in words.iter().filter(|word| word.replaceable) {
        n += 1;
        low = if word.score < low { word.score } else { low };
        high = if word.score > high { word.score } else { high };
    }
    if n == 0 {
        return false;
    }
    if high == low || options.step2 == Step2::Random {
        let ablation = options.step2 == Step2::Random && options.step3 == Step3::Random;
        let p = if ablation && words.len() < 3 {
            0.0
        } else {
            beta
        };
        for word in words.iter_mut().filter(|word| word.replaceable) {
            word.p = p;
        }
        return !ablation;
    }
    match options.mode {
        Mode::Negative => spread(words, beta * n as f64, high - low, |score| score - low),
        Mode::Positive => spread(words, beta * n as f64, high - low, |score| high - score),
    }
    false
}

/// Shares `total` out in proportion to the weights, of which `heaviest` is the largest.
fn spread(words: &mut [Word], total: f64, heaviest: f64, weight: impl Fn(f64) -> f64) {
    let mut sum = 0.0;
    for word in words.iter().filter(|word| word.replaceable) {
        sum += weight(word.score);
    }
    let scale = total / sum;
    let force = scale * heaviest < 1.0;
    for word in words.iter_mut().filter(|word| word.replaceable) {
        let weight = weight(word.score);
        let p = scale * weight;
        word.p = if p > 1.0 || force && weight == heaviest {
            1.0
        } else {
            p
        };
    }
}

/// How often a key stands in a row. Few share their last byte with another, and those are alone; the others look at all
/// keys where they are few, else in sorted order.
struct CountKeys<'a> {
    keys: &'a mut [u32],
    by_last_byte: [u8; 256],
    sorted: bool,
}

impl<'a> CountKeys<'a> {
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
        CountKeys {
            keys,
            by_last_byte,
            sorted,
        }
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
