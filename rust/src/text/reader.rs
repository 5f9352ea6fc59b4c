//! Reads files as chunks of whole rows.
//!
//! One reader behind a lock hands chunks to any number of threads. Only reading, hashing and the search for the last `\n`
//! happen under the lock. This works alike for plain files, `.gz`, `.zst` and standard input; row numbers are known when
//! a chunk is handed out; and memory is bounded by the number of chunks in use. A memory map would save one copy, but it
//! needs `unsafe`, ends the process with SIGBUS when the file shrinks, and counts the whole file as resident memory.
//!
//! A row ends at `\n` and nowhere else. `\r` at the end of a row is dropped; U+2028, U+2029, U+0085, `\x1c` to `\x1f` and
//! a `\r` elsewhere are part of the row.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Place, Result};
use crate::text::format::FileFormat;
pub use crate::text::source::Column;
use crate::text::source::{Blocks, FileStamp, Source, is_stdin};
use crate::wait::{Until, wait};

/// The largest number of bytes of a character.
const MAX_CHAR_BYTES: usize = 4;

/// What to do with bytes that are not UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodingErrors {
    /// Return an error that names the line and the byte offset.
    Strict,
    /// Replace them by U+FFFD and count the rows.
    Replace,
}

/// Options for reading files.
#[derive(Clone, Copy, Debug)]
pub struct ReadOptions {
    pub encoding_errors: EncodingErrors,
    /// A longer row is an error; most often it means that the file does not have one sentence per line.
    pub max_line_bytes: usize,
    /// Size of a chunk: small enough for the second-level cache of a core, large enough that threads rarely wait for the
    /// lock.
    pub chunk_bytes: usize,
    /// Do not return errors for unusual files, but describe them: rows that are too long are cut off after
    /// `max_line_bytes`, and files that are not text are read as if they were.
    pub lenient: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            encoding_errors: EncodingErrors::Strict,
            max_line_bytes: 1 << 20,
            chunk_bytes: 512 * 1024,
            lenient: false,
        }
    }
}

/// Progress of a long call, and a flag that stops it. Shared with the code that shows a progress bar.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of stored bytes to read; 0 if that is unknown (standard input).
    pub total: AtomicU64,
    /// Number of stored bytes read so far.
    pub done: AtomicU64,
    /// Set to stop the call with [`Error::Interrupted`].
    pub cancelled: AtomicBool,
}

impl Progress {
    /// Returns [`Error::Interrupted`] if the call was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}

/// A file that a corpus was read from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// The path as given; `-` is standard input.
    pub path: String,
    /// Size in bytes as stored, before decompression.
    pub bytes: u64,
    pub rows: u64,
    /// XXH3, 128 bits, of the bytes as stored (`xxhsum -H2` prints the same).
    pub xxh3: String,
    /// The column of a table; `None` for a text file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

/// A file to read rows from.
pub struct Input {
    pub path: PathBuf,
    /// Name and decoder of the column of a table (csv, parquet, ...); `None` for a text file.
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
    /// Number of the chunk: 0, 1, 2, ... in the order of the corpus.
    pub seq: u64,
    /// Number of its first row, counted over all files from 0.
    pub first_row: u64,
    /// Number of rows whose bytes were replaced (`EncodingErrors::Replace`), and the number of the first such row; set by
    /// `for_each_row`.
    pub repaired: u64,
    pub first_repaired: Option<u64>,
    bytes: Vec<u8>,
    path: PathBuf,
    column: Option<String>,
    /// Line number of the first row in its file, from 1, and its byte offset in the decoded text.
    first_line: u64,
    offset: u64,
    options: ReadOptions,
}

impl Chunk {
    /// Calls `f(row number, text)` for every row, blank ones included. The text has no `\n` and no final `\r`.
    pub fn for_each_row(&mut self, mut f: impl FnMut(u64, &str)) -> Result<()> {
        self.for_each_cut_row(|row, text, _| f(row, text))
    }

    /// The same with a third argument: whether the row is longer than allowed and was cut off, which happens only if
    /// [`ReadOptions::lenient`] is set.
    pub fn for_each_cut_row(&mut self, mut f: impl FnMut(u64, &str, bool)) -> Result<()> {
        let owned;
        let text = match std::str::from_utf8(&self.bytes) {
            Ok(text) => text,
            Err(error) => match self.options.encoding_errors {
                EncodingErrors::Strict => return Err(self.invalid_utf8(error.valid_up_to())),
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
            let mut line = &text[start..end];
            let too_long = line.len() > self.options.max_line_bytes;
            if too_long && !self.options.lenient {
                return Err(Error::LineTooLong {
                    path: self.path.clone(),
                    place: self.place(row - self.first_row, None),
                    limit: self.options.max_line_bytes,
                });
            }
            if too_long {
                line = prefix(line, self.options.max_line_bytes);
            }
            f(row, line.strip_suffix('\r').unwrap_or(line), too_long);
            row += 1;
            start = end + 1;
        }
        Ok(())
    }

    /// Returns the size of the chunk in bytes.
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

    /// Returns the position of the `nth` row of the chunk.
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

/// Returns the positions of the rows that are not UTF-8.
fn faulty_rows(bytes: &[u8]) -> Vec<u64> {
    let rows = (0..).zip(bytes.split(|&b| b == b'\n'));
    rows.filter(|(_, row)| std::str::from_utf8(row).is_err())
        .map(|(nth, _)| nth)
        .collect()
}

/// Reads a list of files, in order, as one corpus. `work` may be called from several threads at the same time.
pub struct Reader<'a> {
    state: Mutex<State>,
    options: ReadOptions,
    progress: &'a Progress,
    failed: AtomicBool,
}

/// An error and the number of the chunk in which it occurred.
#[derive(Debug)]
pub struct ChunkError {
    seq: u64,
    error: Error,
}

/// Returns the results of all threads, or the error of the earliest chunk. Chunks are handed out in order and every thread
/// finishes its chunk, so the error is the same for any number of threads.
pub fn collect_results<T>(results: Vec<Result<T, ChunkError>>) -> Result<Vec<T>> {
    let mut done = Vec::new();
    let mut first: Option<ChunkError> = None;
    for result in results {
        match result {
            Ok(part) => done.push(part),
            Err(error) => {
                if first.as_ref().is_none_or(|earlier| error.seq < earlier.seq) {
                    first = Some(error);
                }
            }
        }
    }
    first.map_or(Ok(done), |first| Err(first.error))
}

struct State {
    inputs: std::vec::IntoIter<Input>,
    current: Option<OpenFile>,
    seq: u64,
    rows: u64,
    records: Vec<FileRecord>,
    formats: Vec<FileFormat>,
}

/// The file that is being read.
struct OpenFile {
    source: Source,
    path: PathBuf,
    column: Option<String>,
    /// As it was when the file was opened.
    stamp: Option<FileStamp>,
    /// The beginning of a row whose end was not read yet.
    carry: Vec<u8>,
    at_start: bool,
    format: FileFormat,
    rows: u64,
    offset: u64,
}

impl<'a> Reader<'a> {
    /// Checks the paths: one that does not exist or is a directory is an error.
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
            formats: Vec::new(),
        };
        Ok(Reader {
            state: Mutex::new(state),
            options,
            progress,
            failed: AtomicBool::new(false),
        })
    }

    /// Calls `work` with one chunk after the other until there is none left or a thread has failed.
    pub fn work(&self, mut work: impl FnMut(&mut Chunk) -> Result<()>) -> Result<(), ChunkError> {
        let mut chunk = Chunk::default();
        let mut step = || match self.next_chunk(&mut chunk) {
            Ok(true) => work(&mut chunk)
                .map(|()| true)
                .map_err(|error| (chunk.seq, error)),
            Ok(false) => Ok(false),
            Err(error) => Err((u64::MAX, error)), // errors of earlier chunks take precedence
        };
        loop {
            match step() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err((seq, error)) => {
                    self.failed.store(true, Ordering::Relaxed);
                    return Err(ChunkError { seq, error });
                }
            }
        }
    }

    /// Fills `chunk` with the next whole rows. Returns false at the end of the corpus, or if a thread has failed.
    fn next_chunk(&self, chunk: &mut Chunk) -> Result<bool> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if self.failed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        self.progress.check()?;
        loop {
            if state.current.is_none() {
                let Some(input) = state.inputs.next() else {
                    return Ok(false);
                };
                state.current = Some(OpenFile::new(input)?);
            }
            let open = state.current.as_mut().expect("opened above");
            let first_line = open.rows + 1;
            let rows = open.fill(&mut chunk.bytes, &self.options, self.progress)?;
            let offset = open.offset - chunk.bytes.len() as u64; // a byte order mark is not in the chunk
            chunk.path.clone_from(&open.path);
            chunk.column.clone_from(&open.column);
            if rows == 0 {
                let open = state.current.take().expect("opened above");
                let format = open.format.clone();
                let record = open.close()?;
                state.records.push(record);
                state.formats.push(format);
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

    /// Returns the files that were read, once all threads are done. A corpus without a row is an error; a single file
    /// without a row is not.
    pub fn into_records(self) -> Result<Vec<FileRecord>> {
        let (records, _) = self.into_parts();
        if records.iter().all(|file| file.rows == 0) {
            return Err(Error::no_rows(&records));
        }
        Ok(records)
    }

    /// Returns the files that were read and their formats. There may be no row.
    pub fn into_parts(self) -> (Vec<FileRecord>, Vec<FileFormat>) {
        let state = self.state.into_inner().unwrap_or_else(|e| e.into_inner());
        (state.records, state.formats)
    }
}

impl OpenFile {
    fn new(input: Input) -> Result<Self> {
        let path = input.path;
        let stamp = FileStamp::of(&path).map_err(|e| Error::io(&path, e))?;
        let (column, source) = match input.column {
            None => (None, Source::open(&path)?),
            Some((name, column)) => (Some(name), Source::Column(Blocks::new(column))),
        };
        Ok(OpenFile {
            source,
            format: FileFormat::of(&path, b""),
            path,
            column,
            stamp,
            carry: Vec::new(),
            at_start: true,
            rows: 0,
            offset: 0,
        })
    }

    /// Replaces the content of `out` by the next whole rows and returns their number; 0 at the end of the file.
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
            let got = self.read_full(&mut out[old..], progress)?;
            out.truncate(old + got);
            if std::mem::take(&mut self.at_start) {
                self.recognize(out, options)?;
            }
            let rows = if got < options.chunk_bytes {
                let ended = memchr::memchr_iter(b'\n', out).count() as u64;
                if self.rows == 0 && ended == 0 {
                    self.check_line_ends(out, options)?;
                }
                ended + u64::from(out.last().is_some_and(|&b| b != b'\n'))
            } else if let Some(end) = memchr::memrchr(b'\n', out) {
                self.carry.extend_from_slice(&out[end + 1..]);
                out.truncate(end + 1);
                memchr::memchr_iter(b'\n', out).count() as u64
            } else if out.len() > options.max_line_bytes.saturating_add(MAX_CHAR_BYTES) {
                if self.rows == 0 {
                    self.check_line_ends(out, options)?;
                }
                if options.lenient {
                    // Cut after a whole character, so that the row is still too long and no byte is invalid.
                    let cut = options.max_line_bytes + 1;
                    let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
                    let rest = &out[cut..cut + MAX_CHAR_BYTES - 1];
                    out.truncate(cut + rest.iter().take_while(continues).count());
                    self.skip_row(options, progress)?;
                    self.rows += 1;
                    return Ok(1);
                }
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

    /// Examines the beginning of a text file and removes a byte order mark of UTF-8. Other formats are an error.
    fn recognize(&mut self, out: &mut Vec<u8>, options: &ReadOptions) -> Result<()> {
        if self.column.is_none() {
            self.format = FileFormat::of(&self.path, out);
            let error = self.format.error(&self.path, self.source.is_decoded());
            error.filter(|_| !options.lenient).map_or(Ok(()), Err)?;
        }
        if out.starts_with(b"\xef\xbb\xbf") {
            out.drain(..3);
            self.offset += 3;
        }
        Ok(())
    }

    /// Examines the beginning of a text file that has no line feed. Other carriage returns than at the end are an error.
    fn check_line_ends(&mut self, out: &[u8], options: &ReadOptions) -> Result<()> {
        let inside = &out[..out.len().saturating_sub(1)];
        if self.column.is_none() && memchr::memchr(b'\r', inside).is_some() {
            self.format.cr_only = true;
            let error = self.format.error(&self.path, self.source.is_decoded());
            error.filter(|_| !options.lenient).map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Reads until `buf` is full or the file ends, and reports progress. Waiting for a pipe can be cancelled.
    fn read_full(&mut self, mut buf: &mut [u8], progress: &Progress) -> Result<usize> {
        let mut total = 0;
        while !buf.is_empty() {
            if let Some(fd) = self.source.blocking() {
                wait(fd, Until::Readable, progress)?;
            }
            match self.source.read(buf) {
                Ok(0) => break,
                Ok(n) => {
                    total += n;
                    buf = &mut buf[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(&self.path, e)),
            }
        }
        let unreported = self.source.take_unreported();
        progress.done.fetch_add(unreported, Ordering::Relaxed);
        progress.check()?;
        Ok(total)
    }

    /// Reads to the end of the current row without keeping it.
    fn skip_row(&mut self, options: &ReadOptions, progress: &Progress) -> Result<()> {
        let mut block = vec![0; options.chunk_bytes];
        loop {
            let got = self.read_full(&mut block, progress)?;
            if let Some(end) = memchr::memchr(b'\n', &block[..got]) {
                self.carry.extend_from_slice(&block[end + 1..got]);
                return Ok(());
            }
            if got < block.len() {
                return Ok(());
            }
        }
    }

    /// Reads the rest of the file and returns its record; a file that changed since it was opened is an error.
    fn close(self) -> Result<FileRecord> {
        let (bytes, hash) = match self.source.into_hash(&self.path) {
            Ok(found) => found,
            Err(e) => return Err(Error::io(&self.path, e)),
        };
        let stamp = FileStamp::of(&self.path).map_err(|e| Error::io(&self.path, e))?;
        if stamp != self.stamp {
            return Err(Error::FileChanged { path: self.path });
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

/// Returns the beginning of a text, of at most `len` bytes.
pub(crate) fn prefix(text: &str, len: usize) -> &str {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
