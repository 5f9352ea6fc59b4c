//! Diagnosis of a corpus in one pass (`cse doctor`).

mod faults;

use std::collections::{BTreeMap, BinaryHeap};

use rayon::prelude::*;
use serde::Serialize;
use unicode_script::{Script, UnicodeScript};
use xxhash_rust::xxh3::xxh3_64;

pub use faults::Found;
use faults::{Fault, Tallies};

use crate::error::Result;
use crate::index::Index;
use crate::index::build::check_filled;
use crate::index::stats::{Counter, Stats};
use crate::parallel::{on_each_thread, with_threads};
use crate::progress::Progress;
use crate::text::reader::{ChunkError, EncodingErrors, FileRecord, Input, ReadOptions, Reader, collect_results};
use crate::text::row::{is_blank, prefix, row_key};
use crate::text::source::FileFormat;
use crate::text::tokenize::Tokenizer;
use crate::una::augment::Augmenter;
use crate::una::options::Options;
use crate::una::radius::default_radius;
use crate::una::word::Word;

/// Maximum number of sampled rows that are used to predict the replacement rate.
const SAMPLE: usize = 10_000;
/// Maximum number of row keys that a thread keeps. If a thread reads more rows, only a fraction of all rows (about a
/// half, a quarter, ...) is checked for duplicates.
const KEYS: usize = 1 << 24;
/// Maximum number of leading bytes of a sampled row that are used to predict the replacement rate.
const SAMPLE_BYTES: usize = 4096;
/// Longest row length, in words, that the statistics of row lengths distinguish; longer rows count as rows of this
/// length.
const LONGEST: usize = 4096;
/// Row lengths in words that correspond to about 32, 64, 128 and 256 subword tokens.
const LIMITS: [usize; 4] = [24, 48, 96, 192];

/// The result of [`diagnose`].
#[derive(Debug, Serialize)]
pub struct Diagnosis {
    pub files: Vec<FileRecord>,
    /// The format of each file, as recognised from its first bytes.
    pub formats: Vec<FileFormat>,
    pub rows: u64,
    pub documents: u64,
    pub blank: u64,
    pub wordless: u64,
    pub tokens: u64,
    pub terms: usize,
    /// Number of terms that occur in only one document.
    pub singletons: usize,
    pub default_radius: usize,
    /// Number of rows that have the row key of an earlier row (blank rows excluded); an estimate if not all rows were checked.
    pub duplicates: u64,
    pub duplicates_estimated: bool,
    /// Quantiles of the number of words in a row: 5, 50, 95 and 100 per cent, over the rows that are not blank.
    pub words_quantiles: [usize; 4],
    /// For each of four limits on the words of a row: the limit, the fraction of rows (blank rows excluded) that are
    /// longer, and the fraction of words beyond the limit.
    pub cut_off: [(usize, f64, f64); 4],
    /// Each Unicode script and its fraction of all letters, largest first.
    pub scripts: Vec<(&'static str, f64)>,
    /// By name.
    pub faults: BTreeMap<&'static str, Found>,
    pub sampled_rows: usize,
    /// Fraction of the words in the sample that UNA is expected to replace with its default options.
    pub replacement_rate: f64,
    /// Fraction of the words in the sample that cannot be replaced because they are joined to another word.
    pub unreplaceable_rate: f64,
    /// Fraction of the rows in the sample that would not change, because none of their words can be replaced.
    pub unchanged_rate: f64,
}

impl Diagnosis {
    /// Returns the diagnosis as a JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and strings can be written as JSON")
    }
}

/// The findings of one thread.
struct Worker {
    counter: Counter,
    faults: Tallies,
    /// Element n is the number of rows of n words.
    lengths: Vec<u64>,
    scripts: BTreeMap<&'static str, u64>,
    keys: Keys,
    /// A buffer for `row_key`.
    buffer: String,
    /// Sampled rows, each with the hash of its row number. The rows with the smallest hashes are kept, so that the
    /// sample does not depend on the number of threads.
    sample: BinaryHeap<(u64, String)>,
}

/// The row keys that are at most `limit`. The limit is lowered when there are too many keys.
#[derive(Debug)]
struct Keys {
    limit: u64,
    seen: Vec<u64>,
}

impl Keys {
    fn note(&mut self, key: u64) {
        if key <= self.limit {
            self.seen.push(key);
            if self.seen.len() > KEYS {
                self.lower(self.limit / 2);
            }
        }
    }

    fn lower(&mut self, limit: u64) {
        self.limit = limit;
        self.seen.retain(|&key| key <= limit);
    }
}

impl Worker {
    fn new(tokenizer: Tokenizer) -> Self {
        Worker {
            counter: Counter::new(tokenizer),
            faults: Tallies::default(),
            lengths: vec![0; LONGEST + 1],
            scripts: BTreeMap::new(),
            keys: Keys { limit: u64::MAX, seen: Vec::new() },
            buffer: String::new(),
            sample: BinaryHeap::new(),
        }
    }

    /// Examines one row. If the row is too long (`cut` is true), `text` is only its beginning.
    fn examine(&mut self, row: u64, text: &str, cut: bool) {
        let before = self.counter.tokens();
        self.counter.count_row(text, None);
        let words = (self.counter.tokens() - before) as usize;
        self.find_faults(row, text, words);
        self.faults.note(Fault::OverLong, row, cut);
        if is_blank(text) {
            return;
        }
        self.lengths[words.min(LONGEST)] += 1;
        self.keys.note(row_key(text, &mut self.buffer));
        let key = xxh3_64(&row.to_le_bytes());
        if self.sample.len() < SAMPLE || self.sample.peek().is_some_and(|top| key < top.0) {
            self.sample.push((key, prefix(text, SAMPLE_BYTES).to_owned()));
            if self.sample.len() > SAMPLE {
                self.sample.pop();
            }
        }
    }

    fn find_faults(&mut self, row: u64, text: &str, words: usize) {
        let bytes = text.as_bytes();
        let ascii_letters = bytes.iter().filter(|b| b.is_ascii_alphabetic()).count();
        *self.scripts.entry("Latin").or_default() += ascii_letters as u64;
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
                // The first two bytes of a character in UTF-8, decoded as Latin-1 or Windows-1252.
                mojibake |= matches!(last, 'Ã' | 'Â') && matches!(c, '\u{80}'..='\u{bf}')
                    || last == 'â' && matches!(c, '\u{80}' | '€');
                last = c;
            }
        }
        control |= bytes.iter().any(|&b| b < 0x20 && b != b'\t' && b != b'\r' || b == 0x7f);
        let lone_cr = memchr::memchr(b'\r', bytes).is_some();
        for (fault, found) in [
            (Fault::Replacement, replacement),
            (Fault::Mojibake, mojibake),
            (Fault::Control, control),
            (Fault::LineBreak, line_break | lone_cr),
            (Fault::LoneCr, lone_cr),
            (Fault::Tab, memchr::memchr(b'\t', bytes).is_some()),
            (Fault::Markup, has_markup(bytes)),
            (Fault::Long, words > 128),
            (Fault::Short, words < 3 && !is_blank(text)),
        ] {
            self.faults.note(fault, row, found);
        }
    }
}

/// Whether `bytes` contain an HTML entity (`&amp;`) or tag (`<br>`, `</p>`).
fn has_markup(bytes: &[u8]) -> bool {
    memchr::memchr2_iter(b'&', b'<', bytes).any(|at| {
        let rest = &bytes[at + 1..bytes.len().min(at + 12)];
        let (close, inner) =
            if bytes[at] == b'&' { (b';', rest) } else { (b'>', rest.strip_prefix(b"/").unwrap_or(rest)) };
        let name = inner.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'#');
        let n = name.count();
        n > 0 && inner.get(n) == Some(&close)
    })
}

/// Reads `files` once and returns statistics of their rows. Bytes that are not UTF-8 and rows that are too long are
/// counted; they are not errors.
pub fn diagnose(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Diagnosis> {
    let lenient = ReadOptions { encoding_errors: EncodingErrors::Replace, lenient: true, ..options };
    let reader = Reader::open(files, lenient, progress)?;
    with_threads(threads, || {
        let results: Vec<Result<Worker, ChunkError>> = on_each_thread(|| {
            let mut worker = Worker::new(tokenizer);
            reader.work(|chunk| {
                chunk.for_each_cut_row(|row, text, cut| worker.examine(row, text, cut))?;
                worker.faults.add(Fault::Invalid as usize, chunk.repaired, chunk.first_repaired);
                Ok(())
            })?;
            Ok(worker)
        });
        let workers = collect_results(results)?;
        let (files, formats) = reader.into_parts();
        summarize(workers, files, formats, tokenizer)
    })?
}

/// Merges the findings of all threads.
fn summarize(
    workers: Vec<Worker>,
    files: Vec<FileRecord>,
    formats: Vec<FileFormat>,
    tokenizer: Tokenizer,
) -> Result<Diagnosis> {
    let mut faults = Tallies::default();
    let mut lengths = vec![0; LONGEST + 1];
    let mut scripts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut sample = Vec::new();
    let (mut counters, mut keys) = (Vec::new(), Vec::new());
    for worker in workers {
        faults.merge(&worker.faults);
        for (sum, rows) in lengths.iter_mut().zip(&worker.lengths) {
            *sum += rows;
        }
        for (script, letters) in worker.scripts {
            *scripts.entry(script).or_default() += letters;
        }
        sample.extend(worker.sample);
        counters.push(worker.counter);
        keys.push(worker.keys);
    }
    sample.sort_unstable();
    sample.truncate(SAMPLE);
    let stats = counters.into_par_iter().map(|counter| counter.finish().0).reduce(Stats::default, |a, b| a.merge(&b));
    if stats.counts.rows == 0 {
        return Err(FileRecord::no_rows(&files));
    }
    if formats.iter().all(FileFormat::is_text) {
        check_filled(&stats, &files, tokenizer)?;
    }
    let faults = faults.found(&files);
    let (duplicates, duplicates_estimated) = count_duplicates(keys);
    let counts = stats.counts;
    let singletons = stats.df.iter().filter(|&&df| df == 1).count();
    let letters: u64 = scripts.values().sum();
    let mut scripts: Vec<(&str, f64)> = scripts
        .into_iter()
        .map(|(script, n)| (script, n as f64 / letters.max(1) as f64))
        .filter(|&(_, fraction)| fraction > 0.0)
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
        default_radius: default_radius(&index),
        duplicates,
        duplicates_estimated,
        words_quantiles: [0.05, 0.5, 0.95, 1.0].map(|fraction| quantile(&lengths, fraction)),
        cut_off: LIMITS.map(|limit| cut_off(&lengths, limit)),
        scripts,
        faults,
        sampled_rows: sample.len(),
        replacement_rate,
        unreplaceable_rate,
        unchanged_rate,
        files: index.files,
        formats,
    })
}

/// Returns the number of rows that repeat an earlier row, and whether this number is an estimate. If only a fraction of
/// the rows was checked, the number is scaled up.
fn count_duplicates(mut keys: Vec<Keys>) -> (u64, bool) {
    let limit = keys.iter().map(|part| part.limit).min().unwrap_or(u64::MAX);
    let mut all = Vec::new();
    for part in &mut keys {
        part.lower(limit);
        all.append(&mut part.seen);
    }
    all.par_sort_unstable();
    let repeats = all.windows(2).filter(|pair| pair[0] == pair[1]).count() as f64;
    let checked = limit as f64 / u64::MAX as f64;
    ((repeats / checked).round() as u64, limit < u64::MAX)
}

/// Returns the smallest n such that at least the given fraction of the rows have at most n words.
fn quantile(lengths: &[u64], fraction: f64) -> usize {
    let rows: u64 = lengths.iter().sum();
    let wanted = ((rows as f64 * fraction).ceil() as u64).max(1);
    let mut sum = 0;
    let place = lengths.iter().position(|n| {
        sum += n;
        sum >= wanted
    });
    place.unwrap_or(0)
}

/// Returns `limit`, the fraction of rows with more than `limit` words, and the fraction of words beyond the first
/// `limit` words of their row. Rows of more than `LONGEST` words count as rows of `LONGEST` words.
fn cut_off(lengths: &[u64], limit: usize) -> (usize, f64, f64) {
    let (mut rows, mut words, mut long, mut beyond) = (0, 0, 0, 0);
    for (length, &n) in lengths.iter().enumerate() {
        rows += n;
        words += n * length as u64;
        if length > limit {
            long += n;
            beyond += n * (length - limit) as u64;
        }
    }
    let fraction = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    (limit, fraction(long, rows), fraction(beyond, words))
}

/// Returns, for the sampled rows, the expected fraction of words that are replaced, the fraction of words that cannot
/// be replaced, and the fraction of rows that do not change.
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
            expected += 1.0 - sum / p.len() as f64; // one word, drawn uniformly, is replaced regardless of its p
        }
        unchanged += usize::from(p.is_empty());
    }
    let of = |part: f64, whole: usize| part / whole.max(1) as f64;
    [of(expected, words), of(bound as f64, words), of(unchanged as f64, sample.len())]
}
