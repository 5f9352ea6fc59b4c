//! One pass over a corpus that looks for what will hurt later: `cse doctor`.

use std::collections::{BTreeMap, BinaryHeap};

use rayon::prelude::*;
use serde::Serialize;
use unicode_script::{Script, UnicodeScript};
use xxhash_rust::xxh3::xxh3_64;

use crate::augment::{Augmenter, Word};
use crate::corpus::{
    EncodingErrors, Fault, FileRecord, Input, Progress, ReadOptions, Reader, is_blank, settle,
};
use crate::error::Result;
use crate::index::Index;
use crate::jobs::with_threads;
use crate::options::Options;
use crate::stats::{Counter, Stats, check_filled};
use crate::tokenize::Tokenizer;

/// Rows the replacement rate is predicted from.
const SAMPLE: usize = 10_000;
/// Hashes a thread keeps; beyond that a half, a quarter, ... of all rows is watched for duplicates.
const HASHES: usize = 1 << 24;
/// Longer rows count as this long in the quantiles.
const LONGEST: usize = 4096;

/// How many rows have something, and the first of them, from 0.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Found {
    pub rows: u64,
    pub first: Option<u64>,
}

impl Found {
    fn note(&mut self, row: u64, found: bool) {
        if found {
            self.rows += 1;
            self.first = Some(self.first.map_or(row, |first| first.min(row)));
        }
    }

    fn add(&mut self, other: &Found) {
        self.rows += other.rows;
        self.first = match (self.first, other.first) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// What rows have that they had better not.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Faults {
    /// Bytes that are not UTF-8.
    pub invalid: Found,
    /// U+FFFD, for bytes that are not UTF-8, or were not in an earlier life of the text.
    pub replacement: Found,
    /// UTF-8 read as Latin-1 and written as UTF-8 again: "cafÃ©".
    pub mojibake: Found,
    /// Control characters other than a tab.
    pub control: Found,
    pub tab: Found,
    /// U+2028, U+2029, U+0085 or a carriage return inside: other tools end a line there.
    pub line_break: Found,
    /// `&amp;`, `<br>` and the like.
    pub markup: Found,
    /// Over the length that other commands refuse.
    pub over_long: Found,
    /// Over 128 words: hardly one sentence.
    pub long: Found,
    /// Under 3 words.
    pub short: Found,
}

impl Faults {
    fn all(&mut self) -> [&mut Found; 10] {
        [
            &mut self.invalid,
            &mut self.replacement,
            &mut self.mojibake,
            &mut self.control,
            &mut self.tab,
            &mut self.line_break,
            &mut self.markup,
            &mut self.over_long,
            &mut self.long,
            &mut self.short,
        ]
    }
}

/// What the pass found.
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    pub files: Vec<FileRecord>,
    pub rows: u64,
    pub documents: u64,
    pub blank: u64,
    pub wordless: u64,
    pub tokens: u64,
    pub terms: usize,
    /// Terms that stand in one document only.
    pub singletons: usize,
    pub default_radius: usize,
    /// Rows that repeat an earlier one; an estimate if not all rows could be watched.
    pub duplicates: u64,
    pub duplicates_estimated: bool,
    /// Words of a row at 5, 50, 95 and 100 per cent of the rows that are not blank.
    pub words_quantiles: [usize; 4],
    /// Share of letters by Unicode script, the largest first.
    pub scripts: Vec<(&'static str, f64)>,
    pub faults: Faults,
    /// Of the sample: words replaced, words next to another without a boundary, rows that would come back as they are.
    pub sampled_rows: usize,
    pub replacement_rate: f64,
    pub unreplaceable_rate: f64,
    pub unchanged_rate: f64,
}

struct Worker {
    counter: Counter,
    faults: Faults,
    /// Rows by number of words.
    lengths: Vec<u64>,
    scripts: BTreeMap<&'static str, u64>,
    hashes: Hashes,
    /// The rows whose numbers hash lowest: the same for any number of threads.
    sample: BinaryHeap<(u64, String)>,
    max_line_bytes: usize,
}

/// Hashes of rows below a limit that falls as they become many.
#[derive(Debug)]
struct Hashes {
    limit: u64,
    seen: Vec<u64>,
}

impl Hashes {
    fn note(&mut self, hash: u64) {
        if hash <= self.limit {
            self.seen.push(hash);
            if self.seen.len() > HASHES {
                self.lower(self.limit / 2);
            }
        }
    }

    fn lower(&mut self, limit: u64) {
        self.limit = limit;
        self.seen.retain(|&hash| hash <= limit);
    }
}

impl Worker {
    fn new(tokenizer: Tokenizer, max_line_bytes: usize) -> Self {
        Worker {
            counter: Counter::new(tokenizer),
            faults: Faults::default(),
            lengths: vec![0; LONGEST + 1],
            scripts: BTreeMap::new(),
            hashes: Hashes {
                limit: u64::MAX,
                seen: Vec::new(),
            },
            sample: BinaryHeap::new(),
            max_line_bytes,
        }
    }

    fn see(&mut self, row: u64, text: &str) {
        let before = self.counter.tokens();
        self.counter.count_row(text, None);
        let words = (self.counter.tokens() - before) as usize;
        self.look_for_faults(row, text, words);
        if is_blank(text) {
            return;
        }
        self.lengths[words.min(LONGEST)] += 1;
        self.hashes.note(xxh3_64(text.as_bytes()));
        let key = xxh3_64(&row.to_le_bytes());
        if self.sample.len() < SAMPLE || self.sample.peek().is_some_and(|top| key < top.0) {
            self.sample.push((key, text.to_owned()));
            if self.sample.len() > SAMPLE {
                self.sample.pop();
            }
        }
    }

    fn look_for_faults(&mut self, row: u64, text: &str, words: usize) {
        let bytes = text.as_bytes();
        let ascii_letters = bytes.iter().filter(|b| b.is_ascii_alphabetic()).count();
        *self.scripts.entry("Latin").or_default() += ascii_letters as u64;
        let faults = &mut self.faults;
        let (mut replacement, mut mojibake, mut line_break) = (false, false, false);
        let mut control = false;
        if !bytes.is_ascii() {
            let mut last = ' ';
            for c in text.chars().filter(|c| !c.is_ascii()) {
                if c.is_alphabetic() {
                    let script = match c.script() {
                        Script::Common | Script::Inherited => "Common",
                        script => script.full_name(),
                    };
                    *self.scripts.entry(script).or_default() += 1;
                }
                replacement |= c == '\u{fffd}';
                line_break |= matches!(c, '\u{2028}' | '\u{2029}' | '\u{85}');
                control |= matches!(c, '\u{80}'..='\u{84}' | '\u{86}'..='\u{9f}');
                // The second of two bytes of UTF-8, seen through Latin-1 or Windows-1252.
                mojibake |= matches!(last, 'Ã' | 'Â') && matches!(c, '\u{80}'..='\u{bf}')
                    || last == 'â' && matches!(c, '\u{80}' | '€');
                last = c;
            }
        }
        control |= bytes
            .iter()
            .any(|&b| b < 0x20 && b != b'\t' && b != b'\r' || b == 0x7f);
        line_break |= memchr::memchr(b'\r', bytes).is_some();
        faults.replacement.note(row, replacement);
        faults.mojibake.note(row, mojibake);
        faults.control.note(row, control);
        faults.line_break.note(row, line_break);
        faults.tab.note(row, memchr::memchr(b'\t', bytes).is_some());
        faults.markup.note(row, has_markup(bytes));
        faults
            .over_long
            .note(row, bytes.len() > self.max_line_bytes);
        faults.long.note(row, words > 128);
        faults.short.note(row, words < 3 && !is_blank(text));
    }
}

/// An HTML entity (`&amp;`) or tag (`<br>`, `</p>`).
fn has_markup(bytes: &[u8]) -> bool {
    memchr::memchr2_iter(b'&', b'<', bytes).any(|at| {
        let rest = &bytes[at + 1..bytes.len().min(at + 12)];
        let (close, inner) = if bytes[at] == b'&' {
            (b';', rest)
        } else {
            (b'>', rest.strip_prefix(b"/").unwrap_or(rest))
        };
        let name = inner
            .iter()
            .take_while(|b| b.is_ascii_alphanumeric() || **b == b'#');
        let n = name.count();
        n > 0 && inner.get(n) == Some(&close)
    })
}

/// Reads `files` once and says what it saw. Bytes that are not UTF-8 and rows of any length are let pass, and counted.
pub fn diagnose(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Diagnosis> {
    let limit = options.max_line_bytes;
    let lenient = ReadOptions {
        encoding_errors: EncodingErrors::Replace,
        max_line_bytes: usize::MAX,
        ..options
    };
    let reader = Reader::open(files, lenient, progress)?;
    with_threads(threads, || {
        let seen: Vec<Result<Worker, Fault>> = rayon::broadcast(|_| {
            let mut worker = Worker::new(tokenizer, limit);
            reader.work(|chunk| {
                chunk.for_each_row(|row, text| worker.see(row, text))?;
                worker.faults.invalid.add(&Found {
                    rows: chunk.repaired,
                    first: chunk.first_repaired,
                });
                Ok(())
            })?;
            Ok(worker)
        });
        conclude(settle(seen)?, reader.into_records(), tokenizer)
    })?
}

fn conclude(
    workers: Vec<Worker>,
    files: Vec<FileRecord>,
    tokenizer: Tokenizer,
) -> Result<Diagnosis> {
    let mut faults = Faults::default();
    let mut lengths = vec![0; LONGEST + 1];
    let mut scripts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sample = Vec::new();
    let (mut counters, mut hashes) = (Vec::new(), Vec::new());
    for mut worker in workers {
        let theirs = worker.faults.all();
        for (ours, theirs) in faults.all().into_iter().zip(theirs) {
            ours.add(theirs);
        }
        for (sum, rows) in lengths.iter_mut().zip(&worker.lengths) {
            *sum += rows;
        }
        for (script, letters) in worker.scripts {
            *scripts.entry(script).or_default() += letters;
        }
        sample.extend(worker.sample);
        counters.push(worker.counter);
        hashes.push(worker.hashes);
    }
    sample.sort_unstable();
    sample.truncate(SAMPLE);
    let stats = counters
        .into_par_iter()
        .map(|counter| counter.finish().0)
        .reduce(Stats::default, |a, b| a.merge(&b));
    check_filled(&stats, &files, tokenizer)?;
    let (duplicates, duplicates_estimated) = count_duplicates(hashes);
    let counts = stats.counts;
    let singletons = stats.df.iter().filter(|&&df| df == 1).count();
    let letters: u64 = scripts.values().sum();
    let mut scripts: Vec<(&str, f64)> = scripts
        .into_iter()
        .map(|(script, n)| (script, n as f64 / letters.max(1) as f64))
        .filter(|&(_, share)| share > 0.0)
        .collect();
    scripts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let index = Index::new(tokenizer, files, stats);
    let [replacement_rate, unreplaceable_rate, unchanged_rate] = predict(&index, &sample);
    Ok(Diagnosis {
        rows: counts.rows,
        documents: counts.documents,
        blank: counts.blank,
        wordless: counts.wordless,
        tokens: counts.tokens,
        terms: index.len(),
        singletons,
        default_radius: index.default_radius(),
        duplicates,
        duplicates_estimated,
        words_quantiles: [0.05, 0.5, 0.95, 1.0].map(|share| quantile(&lengths, share)),
        scripts,
        faults,
        sampled_rows: sample.len(),
        replacement_rate,
        unreplaceable_rate,
        unchanged_rate,
        files: index.files,
    })
}

/// Rows beyond the first of each kind, scaled up if only a share of all was watched.
fn count_duplicates(mut hashes: Vec<Hashes>) -> (u64, bool) {
    let limit = hashes.iter().map(|h| h.limit).min().unwrap_or(u64::MAX);
    let mut all = Vec::new();
    for part in &mut hashes {
        part.lower(limit);
        all.append(&mut part.seen);
    }
    all.par_sort_unstable();
    let repeats = all.windows(2).filter(|pair| pair[0] == pair[1]).count() as f64;
    let share = limit as f64 / u64::MAX as f64;
    ((repeats / share).round() as u64, limit < u64::MAX)
}

fn quantile(lengths: &[u64], share: f64) -> usize {
    let rows: u64 = lengths.iter().sum();
    let wanted = ((rows as f64 * share).ceil() as u64).max(1);
    let mut sum = 0;
    let place = lengths.iter().position(|n| {
        sum += n;
        sum >= wanted
    });
    place.unwrap_or(0)
}

/// Expected shares: of words replaced, of words that cannot be, of rows that come back as they are.
fn predict(index: &Index, sample: &[(u64, String)]) -> [f64; 3] {
    let mut augmenter = Augmenter::new(index, Options::new(index));
    let (mut words, mut bound, mut expected, mut unchanged) = (0, 0, 0.0, 0);
    for (_, text) in sample {
        augmenter.weigh(text);
        words += augmenter.words.len();
        bound += augmenter.words.iter().filter(|w| !w.replaceable).count();
        let others = |word: &Word| index.len() > usize::from(word.seen);
        let free = |word: &&Word| word.replaceable && others(word);
        let p: Vec<f64> = augmenter.words.iter().filter(free).map(|w| w.p).collect();
        let sum: f64 = p.iter().sum();
        expected += sum;
        if augmenter.force_one && !p.is_empty() {
            expected += 1.0 - sum / p.len() as f64; // the forced one, where it was not drawn anyway
        }
        unchanged += usize::from(p.is_empty());
    }
    let of = |part: f64, whole: usize| part / whole.max(1) as f64;
    [
        of(expected, words),
        of(bound as f64, words),
        of(unchanged as f64, sample.len()),
    ]
}
