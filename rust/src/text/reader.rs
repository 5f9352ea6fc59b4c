//! Reads files as chunks of whole rows.
//!
//! One reader behind a lock hands chunks to any number of threads. Only reading, decompressing, hashing and finding
//! line ends happen under the lock. The same code reads plain files, `.gz`, `.zst`, table columns and standard input.
//! The row numbers of a chunk are known when it is handed out, and memory is bounded by the number of chunks in use.
//! Mapping the file into memory would save one copy, but it would need `unsafe`, end the process with SIGBUS if the
//! file shrinks, and count the whole file as resident memory.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::progress::Progress;
pub use crate::text::row::EncodingErrors;
use crate::text::row::{decode, has_cr_inside, invalid_utf8, prefix, row_too_long, rows, without_final_cr};
use crate::text::source::{Blocks, FileFormat, FileStamp, Source, is_stdin};
pub use crate::text::source::{Column, FileRecord, Input, Prepare, ReadOptions};
use crate::wait::{Until, wait};

/// Reads a list of files, in order, as one corpus. [`work`](Self::work) may be called from several threads at once.
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

/// Returns the results of all threads, or the error of the earliest chunk. The error is the same for any number of
/// threads, because chunks are handed out in order and every thread finishes its chunk.
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

/// Returns the records of `files`, including the number of rows in each, without examining the rows. The corpus may
/// have no rows.
pub fn count_rows(files: Vec<Input>, options: ReadOptions, progress: &Progress) -> Result<Vec<FileRecord>> {
    let reader = Reader::open(files, options, progress)?;
    collect_results(vec![reader.work(|_| Ok(()))])?;
    Ok(reader.into_parts().0)
}

struct State {
    inputs: std::vec::IntoIter<Input>,
    current: Option<OpenFile>,
    seq: u64,
    rows: u64,
    records: Vec<FileRecord>,
    formats: Vec<FileFormat>,
}

impl<'a> Reader<'a> {
    /// Returns a reader. A path that does not exist or is a directory is an error.
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
        Ok(Reader { state: Mutex::new(state), options, progress, failed: AtomicBool::new(false) })
    }

    /// Calls `work` with one chunk after another until no chunk is left or a thread has failed.
    pub fn work(&self, mut work: impl FnMut(&mut Chunk) -> Result<()>) -> Result<(), ChunkError> {
        let mut chunk = Chunk::default();
        let mut step = || match self.next_chunk(&mut chunk) {
            Ok(true) => work(&mut chunk).map(|()| true).map_err(|error| (chunk.seq, error)),
            Ok(false) => Ok(false),
            Err(error) => Err((u64::MAX, error)), // errors in chunks that were handed out take precedence
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
                state.current = Some(OpenFile::new(input, &self.options, self.progress)?);
            }
            let open = state.current.as_mut().expect("opened above");
            let first_line = open.rows + 1;
            let rows = open.fill(&mut chunk.bytes, &self.options, self.progress)?;
            chunk.path.clone_from(&open.path);
            chunk.column.clone_from(&open.column);
            if rows == 0 {
                let open = state.current.take().expect("opened above");
                let format = open.format.clone();
                let record = open.close(self.progress)?;
                state.records.push(record);
                state.formats.push(format);
                continue;
            }
            chunk.first_line = first_line;
            chunk.offset = open.start;
            chunk.options.clone_from(&self.options);
            chunk.repaired = 0;
            chunk.first_repaired = None;
            chunk.seq = state.seq;
            chunk.first_row = state.rows;
            state.seq += 1;
            state.rows += rows;
            return Ok(true);
        }
    }

    /// Returns the records of the files that were read. Must be called after all threads are done. A corpus without
    /// rows is an error.
    pub fn into_records(self) -> Result<Vec<FileRecord>> {
        let (records, _) = self.into_parts();
        if records.iter().all(|file| file.rows == 0) {
            return Err(FileRecord::no_rows(&records));
        }
        Ok(records)
    }

    /// Returns the records of the files that were read, and their formats. The corpus may have no rows.
    pub fn into_parts(self) -> (Vec<FileRecord>, Vec<FileFormat>) {
        let state = self.state.into_inner().unwrap_or_else(|e| e.into_inner());
        (state.records, state.formats)
    }
}

/// Whole rows of one file.
#[derive(Debug, Default)]
pub struct Chunk {
    /// Number of the chunk: 0, 1, 2, ... in the order of the corpus.
    pub seq: u64,
    /// Number of the chunk's first row, counted over all files from 0.
    pub first_row: u64,
    /// Number of rows in which invalid bytes were replaced (see [`EncodingErrors`](crate::EncodingErrors)). This field
    /// and `first_repaired` are set by `for_each_row` and `for_each_cut_row`.
    pub repaired: u64,
    /// Number of the first row in which invalid bytes were replaced, counted like `first_row`.
    pub first_repaired: Option<u64>,
    pub(super) bytes: Vec<u8>,
    pub(super) path: PathBuf,
    pub(super) column: Option<String>,
    /// Line number of the first row in its file, from 1.
    pub(super) first_line: u64,
    /// Byte offset of the first row in the decoded text.
    pub(super) offset: u64,
    pub(super) options: ReadOptions,
}

impl Chunk {
    /// Calls `f(row number, text)` for every row, blank rows included. The text has no `\n` and no final `\r`.
    pub fn for_each_row(&mut self, mut f: impl FnMut(u64, &str)) -> Result<()> {
        self.for_each_cut_row(|row, text, _| f(row, text))
    }

    /// Does the same as [`for_each_row`](Self::for_each_row), but `f` has a third argument: whether the row is too long
    /// and was truncated, which happens only if [`ReadOptions::lenient`] is set.
    pub fn for_each_cut_row(&mut self, mut f: impl FnMut(u64, &str, bool)) -> Result<()> {
        let decoded = decode(&self.bytes, self.options.encoding_errors);
        let (text, faulty) = decoded.map_err(|at| {
            invalid_utf8(&self.path, self.column.as_ref(), &self.bytes, at, self.first_line, self.offset)
        })?;
        if let Some(first) = faulty.first() {
            self.repaired = faulty.len() as u64;
            self.first_repaired = Some(self.first_row + first);
        }
        let mut prepared = self.prepared(&text)?.into_iter();
        for (nth, mut row) in (0..).zip(rows(&text)) {
            let too_long = row.len() > self.options.max_line_bytes;
            if too_long && !self.options.lenient {
                return Err(row_too_long(
                    &self.path,
                    self.column.as_ref(),
                    self.first_line + nth,
                    self.options.max_line_bytes,
                ));
            }
            if too_long {
                row = prefix(row, self.options.max_line_bytes);
            }
            let row = without_final_cr(row);
            let other = prepared.next();
            f(self.first_row + nth, other.as_deref().unwrap_or(row), too_long);
        }
        Ok(())
    }

    /// Returns the rows as changed by [`ReadOptions::prepare`]; none if it is not set.
    fn prepared(&self, text: &str) -> Result<Vec<String>> {
        let Some(Prepare(prepare)) = &self.options.prepare else {
            return Ok(Vec::new());
        };
        let rows: Vec<&str> = rows(text).map(without_final_cr).collect();
        prepare(&rows).map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// Returns the size of the chunk in bytes.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Maximum number of bytes of a character in UTF-8.
const MAX_CHAR_BYTES: usize = 4;

/// The file that is being read.
pub(super) struct OpenFile {
    pub(super) source: Source,
    pub(super) path: PathBuf,
    pub(super) column: Option<String>,
    /// Size and modification time of the file when it was opened.
    stamp: Option<FileStamp>,
    /// Bytes that have been read but belong to the next chunk.
    carry: Vec<u8>,
    at_start: bool,
    pub(super) format: FileFormat,
    /// Number of rows that have been returned.
    pub(super) rows: u64,
    /// Byte offset of the end of these rows in the decoded text.
    pub(super) offset: u64,
    /// Byte offset of the first row that the last call of [`fill`](Self::fill) returned.
    pub(super) start: u64,
}

impl OpenFile {
    /// Opens a file.
    pub(super) fn new(input: Input, options: &ReadOptions, progress: &Progress) -> Result<Self> {
        let path = input.path;
        let stamp = FileStamp::of(&path).map_err(|e| Error::io(&path, e))?;
        let (column, source) = match input.column {
            None => (None, Source::open(&path, progress)?),
            Some((name, column)) => {
                let blocks = Blocks::new(column, options.max_line_bytes);
                (Some(name), Source::Column(blocks))
            }
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
            start: 0,
        })
    }

    /// Replaces the content of `out` with the next whole rows and returns their number, which is 0 at the end of the
    /// file.
    pub(super) fn fill(&mut self, out: &mut Vec<u8>, options: &ReadOptions, progress: &Progress) -> Result<u64> {
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
                    // Cut after the first character that exceeds the limit: the row is not cut inside a character,
                    // and is still too long.
                    let cut = options.max_line_bytes + 1;
                    let continues = |byte: &&u8| **byte & 0xc0 == 0x80;
                    let rest = &out[cut..cut + MAX_CHAR_BYTES - 1];
                    let kept = cut + rest.iter().take_while(continues).count();
                    let row = out.len() as u64 + self.skip_row(options, progress)?;
                    out.truncate(kept);
                    self.advance(1, row);
                    return Ok(1);
                }
                return Err(row_too_long(&self.path, self.column.as_ref(), self.rows + 1, options.max_line_bytes));
            } else {
                continue;
            };
            self.advance(rows, out.len() as u64);
            return Ok(rows);
        }
    }

    /// Advances the position by the rows that are returned and their bytes.
    fn advance(&mut self, rows: u64, bytes: u64) {
        self.start = self.offset;
        self.offset += bytes;
        self.rows += rows;
    }

    /// Recognises the format of a text file from its first bytes, and removes a UTF-8 byte order mark. A format other
    /// than UTF-8 text is an error unless [`ReadOptions::lenient`] is set.
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

    /// Examines the beginning of a text file if it contains no line feed. A carriage return before the last byte is an
    /// error unless [`ReadOptions::lenient`] is set.
    fn check_line_ends(&mut self, out: &[u8], options: &ReadOptions) -> Result<()> {
        if self.column.is_none() && has_cr_inside(out) {
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

    /// Reads and discards the rest of the current row, and returns its number of bytes.
    fn skip_row(&mut self, options: &ReadOptions, progress: &Progress) -> Result<u64> {
        let mut block = vec![0; options.chunk_bytes];
        let mut skipped = 0;
        loop {
            let got = self.read_full(&mut block, progress)?;
            if let Some(end) = memchr::memchr(b'\n', &block[..got]) {
                self.carry.extend_from_slice(&block[end + 1..got]);
                return Ok(skipped + end as u64 + 1);
            }
            skipped += got as u64;
            if got < block.len() {
                return Ok(skipped);
            }
        }
    }

    /// Reads the rest of the file and returns its record; a file that changed since it was opened is an error.
    pub(super) fn close(self, progress: &Progress) -> Result<FileRecord> {
        let (bytes, hash) = self.source.into_hash(&self.path, progress)?;
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
