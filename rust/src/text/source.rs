//! The bytes of a corpus file: plain, compressed, or a column of a table.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::time::SystemTime;

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::text::format::FileFormat;

/// A column of a table, read as text with one row per line.
pub trait Column: Send {
    /// Returns the next block of text, or `None` at the end. The number returned with the block is approximately how
    /// many bytes of the stored file were read for it (for the progress bar). Every row ends with `\n` and contains no
    /// other `\n`.
    fn next_block(&mut self) -> io::Result<Option<(Vec<u8>, u64)>>;
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
        Ok(meta.is_file().then(|| FileStamp {
            bytes: meta.len(),
            modified: meta.modified().ok(),
        }))
    }
}

/// Reads a file, and counts and hashes its bytes as stored, before they are decoded.
pub(crate) struct Hashed {
    inner: Box<dyn Read + Send>,
    /// The file descriptor, if reading can block.
    blocking: Option<i32>,
    hasher: Box<Xxh3>,
    bytes: u64,
    /// Number of bytes read since the last progress report.
    unreported: u64,
}

impl Hashed {
    #[cfg(unix)]
    fn open(path: &Path) -> io::Result<Self> {
        use std::os::fd::{AsFd, AsRawFd};

        // Reads bypass the buffer of `io::stdin`, because polling the file descriptor would not report bytes that are
        // already in this buffer.
        let file = match is_stdin(path) {
            true => File::from(io::stdin().as_fd().try_clone_to_owned()?),
            false => File::open(path)?,
        };
        let regular = file.metadata().is_ok_and(|meta| meta.is_file());
        let blocking = (!regular).then(|| file.as_raw_fd());
        Ok(Hashed::new(Box::new(file), blocking))
    }

    #[cfg(not(unix))]
    fn open(path: &Path) -> io::Result<Self> {
        Ok(match is_stdin(path) {
            true => Hashed::new(Box::new(io::stdin()), None),
            false => Hashed::new(Box::new(File::open(path)?), None),
        })
    }

    fn new(inner: Box<dyn Read + Send>, blocking: Option<i32>) -> Self {
        Hashed {
            inner,
            blocking,
            hasher: Box::new(Xxh3::new()),
            bytes: 0,
            unreported: 0,
        }
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
    block: Vec<u8>,
    at: usize,
    unreported: u64,
}

impl Blocks {
    pub(crate) fn new(column: Box<dyn Column>) -> Self {
        Blocks {
            column,
            block: Vec::new(),
            at: 0,
            unreported: 0,
        }
    }
}

impl Read for Blocks {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while self.at == self.block.len() {
            let Some((block, stored)) = self.column.next_block()? else {
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

/// An open corpus file.
pub(crate) enum Source {
    Plain(Hashed),
    Column(Blocks),
    Gz(Box<flate2::bufread::MultiGzDecoder<BufReader<Hashed>>>),
    Zst(zstd::Decoder<'static, BufReader<Hashed>>),
}

impl Source {
    /// Opens a text file; the suffixes `.gz` and `.zst` select a decoder.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let raw = Hashed::open(path).map_err(|e| Error::io(path, e))?;
        let (suffix, format) = match path.extension().and_then(|e| e.to_str()) {
            Some("gz") => (".gz", "gzip"),
            Some("zst") => (".zst", "zstd"),
            _ => return Ok(Source::Plain(raw)),
        };
        let failed = |e| Error::io(path, e);
        let mut buffered = BufReader::with_capacity(1 << 16, raw);
        let head = buffered.fill_buf().map_err(failed)?;
        if head.is_empty() {
            return Ok(Source::Plain(buffered.into_inner()));
        }
        if FileFormat::of(path, head).magic != Some(format) {
            return Err(Error::NotText {
                path: path.into(),
                what: format!("is not {format} data, although its name ends in {suffix}"),
                advice: "rename it",
            });
        }
        Ok(match format {
            "gzip" => Source::Gz(Box::new(flate2::bufread::MultiGzDecoder::new(buffered))),
            _ => Source::Zst(zstd::Decoder::with_buffer(buffered).map_err(failed)?),
        })
    }

    /// Returns the file descriptor if reading can block; always `None` for a file that is decoded.
    pub(crate) fn blocking(&self) -> Option<i32> {
        match self {
            Source::Plain(raw) => raw.blocking,
            _ => None,
        }
    }

    /// Whether the bytes are the output of a decoder.
    pub(crate) fn is_decoded(&self) -> bool {
        !matches!(self, Source::Plain(_))
    }

    /// Returns the number of bytes, before decoding, that were read since the last call.
    pub(crate) fn take_unreported(&mut self) -> u64 {
        std::mem::take(match self {
            Source::Plain(raw) => &mut raw.unreported,
            Source::Gz(decoder) => &mut decoder.get_mut().get_mut().unreported,
            Source::Zst(decoder) => &mut decoder.get_mut().get_mut().unreported,
            Source::Column(blocks) => &mut blocks.unreported,
        })
    }

    /// Returns the number of bytes of the file as stored, and their hash. The rest of the file is read first, because a
    /// decoder may stop before the end of the file (at padding). A table is read from the beginning, because only
    /// Python has read it so far.
    pub(crate) fn into_hash(self, path: &Path) -> io::Result<(u64, u128)> {
        let mut raw = match self {
            Source::Plain(raw) => raw,
            Source::Gz(decoder) => decoder.into_inner().into_inner(),
            Source::Zst(decoder) => decoder.finish().into_inner(),
            Source::Column(_) => Hashed::open(path)?,
        };
        io::copy(&mut raw, &mut io::sink())?;
        Ok((raw.bytes, raw.hasher.digest128()))
    }
}

impl Read for Source {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Plain(source) => source.read(buf),
            Source::Column(source) => source.read(buf),
            Source::Gz(source) => source.read(buf),
            Source::Zst(source) => source.read(buf),
        }
    }
}
