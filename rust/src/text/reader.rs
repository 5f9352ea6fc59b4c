//! Reads files as chunks of whole rows.
//!
//! One reader behind a lock hands chunks to any number of threads. Only reading, decompressing, hashing and finding
//! line ends happen under the lock. The same code reads plain files, `.gz`, `.zst`, table columns and standard input.
//! The row numbers of a chunk are known when it is handed out, and memory is bounded by the number of chunks in use.
//! Mapping the file into memory would save one copy, but it would need `unsafe`, end the process with SIGBUS if the
//! file shrinks, and count the whole file as resident memory.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::chunk::Chunk;
use crate::text::format::FileFormat;
pub use crate::text::input::{FileRecord, Input, Prepare, ReadOptions};
pub use crate::text::invalid_utf8::EncodingErrors;
use crate::text::open_file::OpenFile;
pub use crate::text::source::Column;
use crate::text::source::is_stdin;

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
