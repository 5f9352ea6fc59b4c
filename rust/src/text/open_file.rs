//! Reads one file of a corpus. Each read returns as many whole rows as fit into a chunk.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::compression::Source;
use crate::text::format::FileFormat;
use crate::text::input::{FileRecord, Input, ReadOptions};
use crate::text::row_ends::has_cr_inside;
use crate::text::row_too_long::row_too_long;
use crate::text::source::{Blocks, FileStamp};
use crate::wait::{Until, wait};

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
                return Err(row_too_long(&self.path, self.column.as_ref(), self.rows + 1, options));
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
