//! Opens text and cuts it into chunks of whole rows.
//!
//! One reader behind a lock hands chunks to any number of workers. Under the lock nothing happens but
//! reading, hashing and finding the last `\n`, so the reader is shared by plain files, `.gz`, `.zst` and
//! standard input alike, row numbers are known when a chunk is handed out, and memory is bounded by the
//! chunks in flight. The road not taken is a memory map: it saves one copy, but needs `unsafe`, dies with
//! SIGBUS when the file shrinks, and counts the whole file as resident.
//!
//! A row ends at `\n` and nowhere else: `\r` at its end is dropped, and U+2028, U+2029, U+0085, `\x1c`
//! to `\x1f` and a lone `\r` inside a row stay there.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Place, Result};
pub use crate::source::Column;
use crate::source::{Blocks, Source, is_stdin};

/// What to do with bytes that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodingErrors {
    /// Refuse the file, naming line and byte offset.
    Strict,
    /// Put U+FFFD in their place and count the rows.
    Replace,
}

#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    pub encoding_errors: EncodingErrors,
    /// A longer row is refused: it is most often a file that is not one sentence per line.
    pub max_line_bytes: usize,
    /// Bytes handed out at a time: small enough for a core's second-level cache, large enough that the lock is idle.
    pub chunk_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            encoding_errors: EncodingErrors::Strict,
            max_line_bytes: 1 << 20,
            chunk_bytes: 512 * 1024,
        }
    }
}

/// How far a long call has come, and the way to stop it; shared with whoever draws the progress bar.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes to read, as stored on disk; 0 where that is unknown (standard input).
    pub total: AtomicU64,
    pub done: AtomicU64,
    pub cancelled: AtomicBool,
}

/// Which file a corpus was read from, and what it held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// As given; `-` is standard input.
    pub path: String,
    /// Bytes as stored, before decompression.
    pub bytes: u64,
    pub rows: u64,
    /// XXH3, 128 bits, of the bytes as stored (`xxhsum -H2` prints the same).
    pub xxh3: String,
    /// Which column of a table; none for a text file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// Something to read rows from.
pub struct Input {
    pub path: PathBuf,
    /// A column of a table (csv, parquet, ...), which somebody else decodes.
    pub column: Option<(String, Box<dyn Column>)>,
}

impl From<PathBuf> for Input {
    fn from(path: PathBuf) -> Self {
        Input { path, column: None }
    }
}

/// Whole rows of one file.
#[derive(Debug, Default)]
pub struct Chunk {
    /// 0, 1, 2, ... in the order of the corpus.
    pub seq: u64,
    /// Row number of the first row, counted over all files from 0.
    pub first_row: u64,
    /// Rows whose bytes were repaired (`EncodingErrors::Replace`), and the number of the first; set by `for_each_row`.
    pub repaired: u64,
    pub first_repaired: Option<u64>,
    bytes: Vec<u8>,
    path: PathBuf,
    column: Option<String>,
    /// Line number of the first row within its file, from 1, and its byte offset in the decoded text.
    first_line: u64,
    offset: u64,
    options: ReadOptions,
}

impl Chunk {
    /// Calls `f(row number, text)` for every row, blank ones included. The text holds no `\n` and no final `\r`.
    pub fn for_each_row(&mut self, mut f: impl FnMut(u64, &str)) -> Result<()> {
        let owned;
        let text = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text,
            Err(fault) => match self.options.encoding_errors {
                EncodingErrors::Strict => return Err(self.invalid_utf8(fault.valid_up_to())),
                EncodingErrors::Replace => {
                    let faulty = faulty_rows(&self.bytes);
                    self.repaired = faulty.len() as u64;
                    self.first_repaired = faulty.first().map(|nth| self.first_row + nth);
                    owned = String::from_utf8_lossy(&self.bytes);
                    &owned
                }
            },
        };
        let bytes = text.as_bytes();
        let (mut start, mut row) = (0, self.first_row);
        while start < bytes.len() {
            let end = memchr::memchr(b'\n', &bytes[start..]).map_or(bytes.len(), |k| start + k);
            if end - start > self.options.max_line_bytes {
                return Err(Error::LineTooLong {
                    path: self.path.clone(),
                    place: self.place(row - self.first_row, None),
                    limit: self.options.max_line_bytes,
                });
            }
            let line = &text[start..end];
            f(row, line.strip_suffix('\r').unwrap_or(line));
            row += 1;
            start = end + 1;
        }
        Ok(())
    }

    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    fn invalid_utf8(&self, at: usize) -> Error {
        let before = memchr::memchr_iter(b'\n', &self.bytes[..at]).count();
        Error::InvalidUtf8 {
            path: self.path.clone(),
            place: self.place(before as u64, Some(self.offset + at as u64)),
        }
    }

    /// Of the chunk's `nth` row.
    fn place(&self, nth: u64, offset: Option<u64>) -> Place {
        place(self.column.as_ref(), self.first_line + nth, offset)
    }
}

fn place(column: Option<&String>, line: u64, offset: Option<u64>) -> Place {
    match column {
        Some(column) => Place::Row {
            row: line,
            column: column.clone(),
        },
        None => Place::Line { line, offset },
    }
}

fn faulty_rows(bytes: &[u8]) -> Vec<u64> {
    let rows = (0..).zip(bytes.split(|&b| b == b'\n'));
    rows.filter(|(_, row)| std::str::from_utf8(row).is_err())
        .map(|(nth, _)| nth)
        .collect()
}

/// Reads a list of files, in order, as one corpus. `work` may be called from many threads at once.
pub struct Reader<'a> {
    state: Mutex<State>,
    options: ReadOptions,
    progress: &'a Progress,
    failed: AtomicBool,
}

/// What went wrong, and in which chunk.
#[derive(Debug)]
pub struct Fault {
    seq: u64,
    error: Error,
}

/// The workers' results, or the fault of the earliest chunk. Chunks are handed out in order and each is finished by
/// whoever has it, so that is the same fault for any number of threads.
pub fn settle<T>(results: Vec<Result<T, Fault>>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    let mut first: Option<Fault> = None;
    for result in results {
        match result {
            Ok(part) => done.push(part),
            Err(fault) => {
                if first.as_ref().is_none_or(|earlier| fault.seq < earlier.seq) {
                    first = Some(fault);
                }
            }
        }
    }
    first.map_or(Ok(done), |fault| Err(fault.error))
}

struct State {
    inputs: std::vec::IntoIter<Input>,
    current: Option<Open>,
    seq: u64,
    rows: u64,
    records: Vec<FileRecord>,
}

struct Open {
    source: Source,
    path: PathBuf,
    column: Option<String>,
    /// The beginning of a row whose end has not been read yet.
    carry: Vec<u8>,
    at_start: bool,
    rows: u64,
    offset: u64,
}

impl<'a> Reader<'a> {
    /// Fails at once, before any work, if a path does not exist or is a directory.
    pub fn open(inputs: Vec<Input>, options: ReadOptions, progress: &'a Progress) -> Result<Self> {
        let mut total = 0;
        let paths = inputs.iter().map(|input| &input.path);
        for path in paths.filter(|path| !is_stdin(path)) {
            let meta = std::fs::metadata(path).map_err(|e| Error::io(path, e))?;
            if meta.is_dir() {
                return Err(Error::IsDirectory { path: path.clone() });
            }
            total += meta.len();
        }
        progress.total.store(total, Ordering::Relaxed);
        let state = State {
            inputs: inputs.into_iter(),
            current: None,
            seq: 0,
            rows: 0,
            records: Vec::new(),
        };
        Ok(Reader {
            state: Mutex::new(state),
            options,
            progress,
            failed: AtomicBool::new(false),
        })
    }

    /// One worker's share: hands chunks to `work` until there are no more, or some worker has failed.
    pub fn work(&self, mut work: impl FnMut(&mut Chunk) -> Result<()>) -> Result<(), Fault> {
        let mut chunk = Chunk::default();
        let mut step = || match self.next_chunk(&mut chunk) {
            Ok(true) => work(&mut chunk)
                .map(|()| true)
                .map_err(|error| (chunk.seq, error)),
            Ok(false) => Ok(false),
            Err(error) => Err((u64::MAX, error)), // whatever was handed out before comes first
        };
        loop {
            match step() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err((seq, error)) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(Fault { seq, error });
                }
            }
        }
    }

    /// Fills `chunk` with the next whole rows; false at the end of the corpus, or if a worker has failed.
    fn next_chunk(&self, chunk: &mut Chunk) -> Result<bool> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if self.failed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        if self.progress.cancelled.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        loop {
            if state.current.is_none() {
                let Some(input) = state.inputs.next() else {
                    return Ok(false);
                };
                state.current = Some(Open::new(input)?);
            }
            let open = state.current.as_mut().expect("opened above");
            let first_line = open.rows + 1;
            let rows = open.fill(&mut chunk.bytes, &self.options, self.progress)?;
            let offset = open.offset - chunk.bytes.len() as u64; // a byte order mark is not in the chunk
            chunk.path.clone_from(&open.path);
            chunk.column.clone_from(&open.column);
            if rows == 0 {
                let open = state.current.take().expect("opened above");
                let record = open.close()?;
                state.records.push(record);
                continue;
            }
            chunk.first_line = first_line;
            chunk.offset = offset;
            chunk.options = self.options;
            chunk.repaired = 0;
            chunk.first_repaired = None;
            chunk.seq = state.seq;
            chunk.first_row = state.rows;
            state.seq += 1;
            state.rows += rows;
            return Ok(true);
        }
    }

    /// The files that were read, once all workers are done.
    pub fn into_records(self) -> Vec<FileRecord> {
        self.state
            .into_inner()
            .unwrap_or_else(|e| e.into_inner())
            .records
    }
}

impl Open {
    fn new(input: Input) -> Result<Self> {
        let path = input.path;
        let (column, source) = match input.column {
            None => (None, Source::open(&path)?),
            Some((name, column)) => (Some(name), Source::Column(Blocks::new(column))),
        };
        Ok(Open {
            source,
            path,
            column,
            carry: Vec::new(),
            at_start: true,
            rows: 0,
            offset: 0,
        })
    }

    /// Puts the next whole rows into `out` and says how many they are; 0 at the end of the file.
    fn fill(
        &mut self,
        out: &mut Vec<u8>,
        options: &ReadOptions,
        progress: &Progress,
    ) -> Result<u64> {
        out.clear();
        out.append(&mut self.carry);
        loop {
            let old = out.len();
            out.resize(old + options.chunk_bytes, 0);
            let got = read_full(&mut self.source, &mut out[old..])
                .map_err(|e| Error::io(&self.path, e))?;
            out.truncate(old + got);
            progress
                .done
                .fetch_add(self.source.take_fresh(), Ordering::Relaxed);
            if std::mem::take(&mut self.at_start) && out.starts_with(b"\xef\xbb\xbf") {
                out.drain(..3);
                self.offset += 3;
            }
            let rows = if got < options.chunk_bytes {
                let unended = u64::from(out.last().is_some_and(|&b| b != b'\n'));
                memchr::memchr_iter(b'\n', out).count() as u64 + unended
            } else if let Some(end) = memchr::memrchr(b'\n', out) {
                self.carry.extend_from_slice(&out[end + 1..]);
                out.truncate(end + 1);
                memchr::memchr_iter(b'\n', out).count() as u64
            } else if out.len() > options.max_line_bytes {
                return Err(Error::LineTooLong {
                    path: self.path.clone(),
                    place: place(self.column.as_ref(), self.rows + 1, None),
                    limit: options.max_line_bytes,
                });
            } else {
                continue;
            };
            self.rows += rows;
            self.offset += out.len() as u64;
            return Ok(rows);
        }
    }

    fn close(self) -> Result<FileRecord> {
        let (bytes, hash) = match self.source.into_hash(&self.path) {
            Ok(found) => found,
            Err(e) => return Err(Error::io(&self.path, e)),
        };
        if bytes == 0 {
            return Err(Error::EmptyFile { path: self.path });
        }
        Ok(FileRecord {
            path: self.path.to_string_lossy().into_owned(),
            bytes,
            rows: self.rows,
            xxh3: format!("{hash:032x}"),
            column: self.column,
        })
    }
}

fn read_full(source: &mut impl Read, mut buf: &mut [u8]) -> io::Result<usize> {
    let mut total = 0;
    while !buf.is_empty() {
        match source.read(buf) {
            Ok(0) => break,
            Ok(n) => {
                total += n;
                buf = &mut buf[n..];
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(total)
}

/// Python's white space (`str.isspace`): Unicode's, and the four separators U+001C to U+001F.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\x1c'..='\x1f').contains(&c)
}

/// A row with nothing in it but white space.
pub fn is_blank(row: &str) -> bool {
    row.chars().all(is_space)
}
