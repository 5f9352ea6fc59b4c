//! The whole jobs: files to an index, files to negatives, files to rows in memory.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use xxhash_rust::xxh3::xxh3_64;

use crate::augment::Augmenter;
use crate::corpus::{Fault, FileRecord, Input, Progress, ReadOptions, Reader, is_space, settle};
use crate::draw::{random_bits, to_unit};
use crate::error::{Error, Result};
use crate::index::Index;
use crate::options::{Options, Report};
use crate::record;
use crate::stats::{self, Counter};
use crate::store::{self, Stored};
use crate::tokenize::{Scratch, Tokenizer};

const MAX_THREADS: usize = 1024;

/// Runs `work` with `threads` threads (0: as many as the machine has).
pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    if threads > MAX_THREADS {
        let why =
            format!("{threads} was given, and it must be at most {MAX_THREADS}; 0 takes all cores");
        return Err(Error::invalid("--threads", why));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::invalid("--threads", e.to_string()))?;
    Ok(pool.install(work))
}

/// Counts files into what an index stores, be it nothing.
pub fn count(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Stored> {
    let work = || stats::count(files, tokenizer, options, false, progress);
    let counted = with_threads(threads, work)??;
    Ok(Stored {
        tokenizer,
        files: counted.files,
        stats: counted.stats,
    })
}

/// Counts files into what an index stores; a corpus without a word is refused.
pub fn build(
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    threads: usize,
    progress: &Progress,
) -> Result<Stored> {
    let stored = count(files, tokenizer, options, threads, progress)?;
    stats::check_filled(&stored.stats, &stored.files, tokenizer)?;
    Ok(stored)
}

/// Counts files and writes the index, and the matrix if wanted, into the folder `dir`.
pub fn build_to(
    dir: &Path,
    files: Vec<Input>,
    tokenizer: Tokenizer,
    options: ReadOptions,
    with_matrix: bool,
    threads: usize,
    progress: &Progress,
) -> Result<Stored> {
    with_threads(threads, || {
        let counted = stats::count(files, tokenizer, options, with_matrix, progress)?;
        stats::check_filled(&counted.stats, &counted.files, tokenizer)?;
        let parts = with_matrix.then_some(counted.parts);
        let stored = Stored {
            tokenizer,
            files: counted.files,
            stats: counted.stats,
        };
        store::save(dir, &stored, parts)?;
        Ok(stored)
    })?
}

/// Counts texts in memory: an index of no file.
pub fn build_from_texts<'a>(
    texts: impl Iterator<Item = &'a str>,
    tokenizer: Tokenizer,
) -> Result<Stored> {
    let mut counter = Counter::new(tokenizer);
    texts.for_each(|text| counter.count_row(text, None));
    let (stats, _) = counter.finish();
    stats::check_filled(&stats, &[], tokenizer)?;
    Ok(Stored {
        tokenizer,
        files: Vec::new(),
        stats,
    })
}

/// Joins what is stored of several corpora, each with a name for messages, into that of all their files in this order.
pub fn merge(shards: impl IntoIterator<Item = Result<(String, Stored)>>) -> Result<Stored> {
    let mut shards = shards.into_iter();
    let none = || Error::invalid("shards", "none were given");
    let (_, mut joined) = shards.next().ok_or_else(none)??;
    for shard in shards {
        let (name, stored) = shard?;
        joined = joined.merge(stored, &name)?;
    }
    Ok(joined)
}

/// Joins the indexes in some folders and writes the whole into `dir`.
pub fn merge_to(dir: &Path, shards: &[PathBuf]) -> Result<Stored> {
    let named =
        |shard: &PathBuf| store::read(shard).map(|stored| (shard.display().to_string(), stored));
    let joined = merge(shards.iter().map(named))?;
    store::save(dir, &joined, None)?;
    Ok(joined)
}

/// The same for indexes as bytes.
pub fn merge_bytes(shards: &[&[u8]]) -> Result<Stored> {
    merge(shards.iter().map(|bytes| {
        let stored = store::deserialize(bytes, Path::new("shard"))?;
        let name = stored.files.first().map_or("shard", |file| &file.path);
        Ok((name.to_owned(), stored))
    }))
}

/// Writes an index that was counted elsewhere; one without a word is refused.
pub fn save_bytes(dir: &Path, bytes: &[u8]) -> Result<Stored> {
    let stored = store::deserialize(bytes, Path::new("bytes"))?;
    stats::check_filled(&stored.stats, &stored.files, stored.tokenizer)?;
    store::save_bytes(dir, bytes)?;
    Ok(stored)
}

/// The TF-IDF matrix of some texts over the index's terms.
#[derive(Debug, Default)]
pub struct Transformed {
    pub indptr: Vec<i64>,
    pub indices: Vec<i64>,
    pub values: Vec<f64>,
}

/// One row of `ln(1 + c/L) * idf` per text; terms that the index does not know count in L and are left out.
pub fn transform<'a>(index: &Index, texts: impl Iterator<Item = &'a str>) -> Transformed {
    let mut out = Transformed {
        indptr: vec![0],
        ..Transformed::default()
    };
    let mut scratch = Scratch::default();
    let mut row: Vec<u32> = Vec::new();
    for text in texts {
        let mut length = 0;
        row.clear();
        index.tokenizer.for_each(text, &mut scratch, |_, _, term| {
            length += 1;
            let known = index.find(&term.key(), term.bytes());
            row.extend(known.map(|known| index.by_rank[known.rank as usize]));
        });
        row.sort_unstable();
        for same in row.chunk_by(|a, b| a == b) {
            let idf = index.idf[same[0] as usize];
            out.indices.push(i64::from(same[0]));
            out.values.push(index.score(idf, same.len() as u32, length));
        }
        out.indptr.push(out.indices.len() as i64);
    }
    out
}

/// The terms of a text, with the characters they span.
pub fn terms(text: &str, tokenizer: Tokenizer) -> Vec<(usize, usize, String)> {
    let (mut ruler, mut terms) = (record::Ruler::new(text), Vec::new());
    tokenizer.for_each(text, &mut Scratch::default(), |start, end, term| {
        let term = in_utf8(term.bytes().to_vec());
        terms.push((ruler.at(start), ruler.at(end), term));
    });
    terms
}

/// How negatives are written.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Negatives of a row, one after the other.
    pub copies: u64,
    /// JSON objects instead of plain lines.
    pub as_records: bool,
}

/// Writes the negatives of each row of `files`, in order; to standard output if `output` is `None`.
#[allow(clippy::too_many_arguments)]
pub fn augment_files(
    index: &Index,
    options: Options,
    writing: Writing,
    files: Vec<Input>,
    read: ReadOptions,
    output: Option<&Path>,
    threads: usize,
    progress: &Progress,
) -> Result<Report> {
    // What a chunk becomes is held until it is its turn.
    let read = ReadOptions {
        chunk_bytes: (read.chunk_bytes / writing.copies.max(1) as usize).max(4096),
        ..read
    };
    let reader = Reader::open(files, read, progress)?;
    let run = |out: &mut (dyn Write + Send)| {
        let ordered = Ordered::new(out, output);
        with_threads(threads, || {
            let parts =
                rayon::broadcast(|_| augment_part(index, options, writing, &reader, &ordered));
            let mut total = Report::default();
            for report in settle(parts)? {
                total.add(&report);
            }
            Ok(total)
        })?
    };
    let Some(path) = output else {
        return run(&mut io::stdout());
    };
    let mut result = Ok(Report::default());
    let pending = store::Pending::write(path, |file| {
        result = run(file);
        match result {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::other("not written")), // `result` says why
        }
    });
    let report = result?;
    pending?.commit()?;
    Ok(report)
}

/// One negative for each text of a row.
pub fn augment_texts<'a>(
    index: &Index,
    options: Options,
    texts: impl Iterator<Item = (&'a str, u64)>,
) -> (Vec<String>, Report) {
    let mut augmenter = Augmenter::new(index, options);
    let negatives = texts.map(|(text, row)| {
        let mut out = Vec::with_capacity(text.len() * 5 / 4);
        augmenter.augment(text, row, &mut out);
        in_utf8(out)
    });
    (negatives.collect(), augmenter.report)
}

fn in_utf8(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("sentences and terms are UTF-8, and cut at characters")
}

/// A word that was replaced, by what, its span, the new one's in the output, p, both ranks from 1.
pub type Replaced = (String, String, Span, Span, f64, usize, usize);

/// A range of characters.
pub type Span = (usize, usize);

/// The negative of one text, and what was replaced.
pub fn replacements(
    index: &Index,
    options: Options,
    text: &str,
    row: u64,
) -> (String, Vec<Replaced>) {
    let mut augmenter = Augmenter::new(index, options);
    let mut out = Vec::new();
    augmenter.augment(text, row, &mut out);
    let out = in_utf8(out);
    let each = record::replaced(&augmenter, text, &out)
        .into_iter()
        .map(|r| {
            let (old, new) = (r.old.to_owned(), r.new.to_owned());
            (old, new, r.span, r.new_span, r.p, r.rank, r.new_rank)
        });
    let list = each.collect();
    (out, list)
}

/// One word of a sentence: surface, whether it is in the index, document frequency, tf-idf, p, rank from 1, and
/// what could take its place.
pub type Explained = (String, bool, u64, f64, f64, usize, Vec<String>);

pub fn explain(index: &Index, options: Options, text: &str, samples: usize) -> Vec<Explained> {
    let mut augmenter = Augmenter::new(index, options);
    augmenter.weigh(text);
    let explained = augmenter.words.iter().enumerate().map(|(w, word)| {
        let draws: Vec<u64> = (0..samples as u64).collect();
        let bits = random_bits(options.seed, w as u64, &draws, EXPLAIN);
        let sampled = bits
            .into_iter()
            .filter_map(|bits| augmenter.sample(w, to_unit(bits)));
        let df = if word.seen {
            index.stats.df[index.term_at(word.rank)]
        } else {
            0
        };
        let surface = text[word.start..word.end].to_owned();
        let sampled = sampled.map(str::to_owned).collect();
        (
            surface,
            word.seen,
            df,
            word.score,
            word.p,
            word.rank + 1,
            sampled,
        )
    });
    explained.collect()
}

/// The random stream of `explain`, apart from all others.
const EXPLAIN: u64 = u64::MAX;

fn augment_part(
    index: &Index,
    options: Options,
    writing: Writing,
    reader: &Reader,
    out: &Ordered,
) -> Result<Report, Fault> {
    let mut augmenter = Augmenter::new(index, options);
    let mut one = Vec::new();
    reader.work(|chunk| {
        let mut written = Vec::with_capacity(chunk.byte_len() * 5 / 4);
        chunk.for_each_row(|row, text| {
            augmenter.weigh(text);
            for copy in options.copy..options.copy + writing.copies {
                if writing.as_records {
                    one.clear();
                    augmenter.rewrite(text, row, copy, &mut one);
                    let output = std::str::from_utf8(&one).expect("a negative is UTF-8");
                    record::push(&augmenter, row, copy, text, output, &mut written);
                } else {
                    augmenter.rewrite(text, row, copy, &mut written);
                    written.push(b'\n');
                }
            }
        })?;
        augmenter.report.repaired += chunk.repaired;
        out.put(chunk.seq, written)
    })?;
    Ok(augmenter.report)
}

/// Writes pieces in the order of their numbers, whichever comes first.
struct Ordered<'a> {
    state: Mutex<Waiting<'a>>,
    path: &'a Path,
}

struct Waiting<'a> {
    next: u64,
    pieces: BTreeMap<u64, Vec<u8>>,
    out: &'a mut (dyn Write + Send),
}

impl<'a> Ordered<'a> {
    fn new(out: &'a mut (dyn Write + Send), path: Option<&'a Path>) -> Self {
        let (next, pieces) = (0, BTreeMap::new());
        Ordered {
            state: Mutex::new(Waiting { next, pieces, out }),
            path: path.unwrap_or(Path::new("standard output")),
        }
    }

    fn put(&self, seq: u64, piece: Vec<u8>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let Waiting { next, pieces, out } = &mut *state;
        pieces.insert(seq, piece);
        while let Some(piece) = pieces.remove(next) {
            let written = out.write_all(&piece);
            written.map_err(|source| Error::Io {
                path: self.path.into(),
                source,
            })?;
            *next += 1;
        }
        Ok(())
    }
}

/// A corpus in memory: one buffer, and where each row ends.
#[derive(Debug, Default)]
pub struct Rows {
    text: String,
    ends: Vec<usize>,
    pub files: Vec<FileRecord>,
    pub repaired: u64,
}

impl Rows {
    pub fn read(files: Vec<Input>, options: ReadOptions, progress: &Progress) -> Result<Self> {
        let reader = Reader::open(files, options, progress)?;
        let mut rows = Rows::default();
        settle(vec![reader.work(|chunk| {
            chunk.for_each_row(|_, row| {
                rows.text.push_str(row);
                rows.ends.push(rows.text.len());
            })?;
            rows.repaired += chunk.repaired;
            Ok(())
        })])?;
        rows.files = reader.into_records();
        Ok(rows)
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn get(&self, row: usize) -> Option<&str> {
        let end = *self.ends.get(row)?;
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        Some(&self.text[start..end])
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|row| self.get(row))
    }

    /// Words between white space, for each row; 0 is a blank row.
    pub fn word_counts(&self) -> Vec<u32> {
        let words = |row: &str| row.split(is_space).filter(|word| !word.is_empty()).count() as u32;
        self.iter().map(words).collect()
    }

    /// XXH3 (64 bits) of each row's text: equal rows have equal hashes.
    pub fn hashes(&self) -> Vec<u64> {
        self.iter().map(|row| xxh3_64(row.as_bytes())).collect()
    }
}
