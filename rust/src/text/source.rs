//! The bytes of a corpus file as stored, or of a column of a table.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::wait::{Until, is_pipe, open_pipe};

/// A column of a table, read as text with one row per line.
pub trait Column: Send {
    /// Returns the next block of text, or `None` at the end. The number returned with the block is approximately how
    /// many bytes of the stored file were read for it (for the progress bar). Every row ends with `\n` and contains no
    /// other `\n`. A row of more than `max_line_bytes` may be refused before it is decoded.
    fn next_block(&mut self, max_line_bytes: usize) -> io::Result<Option<(Vec<u8>, u64)>>;
}

/// Whether the path is `-`, which denotes standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Size and modification time of a regular file, used to detect changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl FileStamp {
    /// Returns the stamp of a file; `None` for standard input and for files that are not regular.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        if is_stdin(path) {
            return Ok(None);
        }
        let meta = std::fs::metadata(path)?;
        Ok(meta.is_file().then(|| FileStamp { bytes: meta.len(), modified: meta.modified().ok() }))
    }
}

/// Reads a file, and counts and hashes its bytes as stored, before they are decoded.
pub(crate) struct Hashed {
    inner: Box<dyn Read + Send>,
    /// The file descriptor, if reading can block.
    pub(super) blocking: Option<i32>,
    pub(super) hasher: Box<Xxh3>,
    pub(super) bytes: u64,
    /// Number of bytes read since the last progress report.
    pub(super) unreported: u64,
}

impl Hashed {
    /// Opens a file, or standard input. Waiting for the writer of a named pipe can be cancelled.
    pub(super) fn open(path: &Path, progress: &Progress) -> Result<Self> {
        // Reads bypass the buffer of `io::stdin`, because polling the file descriptor would not report bytes that are
        // already in this buffer.
        let failed = |e| Error::io(path, e);
        let file = if is_stdin(path) {
            File::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?)
        } else if is_pipe(path) {
            open_pipe(path, Until::Readable, progress)?
        } else {
            File::open(path).map_err(failed)?
        };
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let blocking = (!regular).then(|| file.as_raw_fd());
        Ok(Hashed::new(Box::new(file), blocking))
    }

    fn new(inner: Box<dyn Read + Send>, blocking: Option<i32>) -> Self {
        Hashed { inner, blocking, hasher: Box::new(Xxh3::new()), bytes: 0, unreported: 0 }
    }
}

impl Read for Hashed {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.hasher.update(&buf[..n]);
        self.bytes += n as u64;
        self.unreported += n as u64;
        Ok(n)
    }
}

/// Reads the blocks of a column as one stream.
pub(crate) struct Blocks {
    column: Box<dyn Column>,
    max_line_bytes: usize,
    block: Vec<u8>,
    at: usize,
    pub(super) unreported: u64,
}

impl Blocks {
    pub(crate) fn new(column: Box<dyn Column>, max_line_bytes: usize) -> Self {
        Blocks { column, max_line_bytes, block: Vec::new(), at: 0, unreported: 0 }
    }
}

impl Read for Blocks {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            let Some((block, stored)) = self.column.next_block(self.max_line_bytes)? else {
                return Ok(0);
            };
            (self.block, self.at) = (block, 0);
            self.unreported += stored;
        }
        let n = buf.len().min(self.block.len() - self.at);
        buf[..n].copy_from_slice(&self.block[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}
