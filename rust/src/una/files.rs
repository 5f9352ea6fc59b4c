//! Applies UNA to files.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use flate2::write::GzEncoder;

use crate::error::{Error, Named, Result};
use crate::index::Index;
use crate::output::{PendingFile, StandardOutput};
use crate::parallel::{on_each_thread, with_threads};
use crate::progress::Progress;
use crate::text::reader::{ChunkError, FileRecord, Input, ReadOptions, Reader, collect_results};
use crate::una::augment::Augmenter;
use crate::una::options::{Options, Report};
use crate::una::record;
use crate::wait::is_pipe;

/// How synthetic sentences are written.
#[derive(Clone, Copy, Debug)]
pub struct OutputOptions {
    /// Number of sentences to write per row, one after the other.
    pub copies: u64,
    /// Write JSON objects instead of plain lines.
    pub as_records: bool,
    /// Compression of an output file; standard output is never compressed.
    pub compression: Compression,
    /// For files that are only a part of the corpus: the row number of their first row in the whole corpus. Such a part
    /// may have no rows. `None` if the files are the whole corpus.
    pub first_row: Option<u64>,
}

/// Compression of a file that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

impl Named for Compression {
    const FLAG: &'static str = "--compression";
    const NAMES: &'static [(&'static str, Self)] =
        &[("none", Compression::None), ("gz", Compression::Gzip), ("zst", Compression::Zstd)];
}

/// Writes synthetic sentences for each row of `files`, in order, to the file `output`, or to standard output if
/// `output` is `None`. Returns the report, and the records of the files that were read.
#[allow(clippy::too_many_arguments)]
pub fn augment_files(
    index: &Index,
    options: Options,
    writing: OutputOptions,
    files: Vec<Input>,
    read: ReadOptions,
    output: Option<&Path>,
    threads: usize,
    progress: &Progress,
) -> Result<(Report, Vec<FileRecord>)> {
    // With several copies per row, chunks are smaller, because the output of a chunk is kept in memory until the
    // outputs of all earlier chunks are written.
    let read = ReadOptions { chunk_bytes: (read.chunk_bytes / writing.copies.max(1) as usize).max(4096), ..read };
    let reader = Reader::open(files, read, progress)?;
    let run = |out: &mut (dyn Write + Send)| {
        let ordered = OrderedWriter::new(out, output, progress);
        let total = with_threads(threads, || {
            let parts = on_each_thread(|| augment_part(index, options, writing, &reader, &ordered));
            let mut total = Report::default();
            for report in collect_results(parts)? {
                total.add(&report);
            }
            Ok::<_, Error>(total)
        })??;
        let records = match writing.first_row {
            Some(_) => reader.into_parts().0,
            None => reader.into_records()?,
        };
        progress.check()?;
        Ok((total, records))
    };
    let Some(path) = output else {
        return run(&mut StandardOutput::open(progress)?);
    };
    let mut result = Ok((Report::default(), Vec::new()));
    let write = |file: &mut (dyn Write + Send)| {
        compressed(file, writing.compression, |out| {
            result = run(out);
            match result {
                Ok(_) => Ok(()),
                Err(_) => Err(io::Error::other("not written")), // `result` has the cause
            }
        })
    };
    if is_pipe(path) {
        let written = write(&mut StandardOutput::of_pipe(path, progress)?);
        let done = result?;
        written.map_err(|e| Error::io(path, e))?;
        return Ok(done);
    }
    let pending = PendingFile::write(path, |file| write(file));
    let done = result?;
    pending?.commit()?;
    Ok(done)
}

/// Calls `write` with a writer that compresses into `file`. The same content always gives the same bytes, because the
/// gzip header contains no time stamp.
fn compressed(
    file: &mut (dyn Write + Send),
    compression: Compression,
    write: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>,
) -> io::Result<()> {
    match compression {
        Compression::None => write(file),
        Compression::Gzip => {
            let mut out = GzEncoder::new(file, flate2::Compression::default());
            write(&mut out)?;
            out.finish().map(drop)
        }
        Compression::Zstd => {
            let mut out = zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?;
            write(&mut out)?;
            out.finish().map(drop)
        }
    }
}

/// Augments chunks of rows on one thread until no chunk is left.
fn augment_part(
    index: &Index,
    options: Options,
    writing: OutputOptions,
    reader: &Reader,
    out: &OrderedWriter,
) -> Result<Report, ChunkError> {
    let mut augmenter = Augmenter::new(index, options);
    let mut output = Vec::new();
    reader.work(|chunk| {
        let mut written = Vec::with_capacity(chunk.byte_len() * 5 / 4);
        chunk.for_each_row(|row, text| {
            let row = row + writing.first_row.unwrap_or(0);
            augmenter.weigh(text);
            for copy in options.copy..options.copy + writing.copies {
                if writing.as_records {
                    output.clear();
                    augmenter.rewrite(text, row, copy, &mut output);
                    let output = std::str::from_utf8(&output).expect("the output is UTF-8");
                    let text = index.tokenizer.text(text);
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

/// Writes pieces in the order of their numbers, even if they arrive in a different order.
struct OrderedWriter<'a> {
    state: Mutex<WriterState<'a>>,
    path: &'a Path,
    progress: &'a Progress,
}

struct WriterState<'a> {
    next: u64,
    waiting: BTreeMap<u64, Vec<u8>>,
    out: &'a mut (dyn Write + Send),
}

impl<'a> OrderedWriter<'a> {
    fn new(out: &'a mut (dyn Write + Send), path: Option<&'a Path>, progress: &'a Progress) -> Self {
        let (next, waiting) = (0, BTreeMap::new());
        OrderedWriter {
            state: Mutex::new(WriterState { next, waiting, out }),
            path: path.unwrap_or(Path::new("standard output")),
            progress,
        }
    }

    /// Accepts piece number `seq`, and writes every piece whose predecessors have all been written.
    fn put(&self, seq: u64, piece: Vec<u8>) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let WriterState { next, waiting, out } = &mut *state;
        waiting.insert(seq, piece);
        while let Some(piece) = waiting.remove(next) {
            let written = out.write_all(&piece);
            self.progress.check()?;
            written.map_err(|source| Error::Io { path: self.path.into(), source })?;
            *next += 1;
        }
        Ok(())
    }
}
