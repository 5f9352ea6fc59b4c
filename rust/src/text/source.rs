//! What is read: the files of a corpus, options for reading, and the bytes of a file, which are opened, recognised by
//! their beginning, hashed as stored, and decompressed. The suffix of a file selects the decoder, and the first bytes
//! must agree with the suffix.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use flate2::bufread::GzDecoder;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::row::EncodingErrors;
use crate::wait::{Until, is_pipe, open_pipe};

/// Options for reading files.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    pub encoding_errors: EncodingErrors,
    /// Maximum length of a row in bytes. A longer row is an error, because it usually means that the file does not have
    /// one sentence per line.
    pub max_line_bytes: usize,
    /// Size of a chunk in bytes: small enough for the second-level cache of a core, but large enough that threads
    /// rarely wait for the lock.
    pub chunk_bytes: usize,
    /// Do not return errors for unusual files: truncate rows to `max_line_bytes`, and read files that are not text as
    /// if they were text.
    pub lenient: bool,
    /// Changes the rows of each chunk, for example by adding the pieces of a model's tokenizer.
    pub prepare: Option<Prepare>,
}

/// A function that receives the rows of a chunk, and returns a row for each. Several threads may call it at once.
#[derive(Clone)]
pub struct Prepare(pub Arc<PrepareRows>);

type PrepareRows = dyn Fn(&[&str]) -> io::Result<Vec<String>> + Send + Sync;

impl fmt::Debug for Prepare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prepare")
    }
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            encoding_errors: EncodingErrors::Strict,
            max_line_bytes: 1 << 20,
            chunk_bytes: 512 * 1024,
            lenient: false,
            prepare: None,
        }
    }
}

/// A file from which a corpus was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "python", derive(pyo3::IntoPyObject))]
pub struct FileRecord {
    /// The path as given; `-` is standard input.
    pub path: String,
    /// Size in bytes as stored, before decompression.
    pub bytes: u64,
    pub rows: u64,
    /// XXH3-128 checksum of the bytes as stored (`xxhsum -H2` prints the same value).
    pub xxh3: String,
    /// The column of a table; `None` for a text file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<String>,
}

impl FileRecord {
    /// Returns the name by which messages refer to a corpus of these files.
    pub fn name_of(files: &[FileRecord]) -> String {
        match files {
            [] => "texts".into(),
            [file] => file.path.clone(),
            [file, rest @ ..] => format!("{} and {} more", file.path, rest.len()),
        }
    }

    /// Returns the error for a corpus without rows.
    pub fn no_rows(files: &[FileRecord]) -> Error {
        match files {
            [file] if file.bytes == 0 => Error::EmptyFile { path: PathBuf::from(&file.path) },
            _ => Error::NoRows { path: FileRecord::name_of(files) },
        }
    }
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

/// Bytes at the beginning of a file that identify its format or encoding.
struct Signature {
    name: &'static str,
    bytes: &'static [u8],
    /// What the user should do with such a file.
    advice: &'static str,
}

const MAGIC: [Signature; 6] = [
    Signature { name: "gzip", bytes: b"\x1f\x8b\x08", advice: "rename it to end in .gz" },
    Signature { name: "zstd", bytes: b"\x28\xb5\x2f\xfd", advice: "rename it to end in .zst" },
    Signature {
        name: "parquet",
        bytes: b"PAR1",
        advice: "rename it to end in .parquet and name the column with --column",
    },
    Signature { name: "zip", bytes: b"PK\x03\x04", advice: "decompress it first (unzip)" },
    Signature { name: "xz", bytes: b"\xfd7zXZ\0", advice: "decompress it first (xz -d)" },
    Signature { name: "bzip2", bytes: b"1AY&SY", advice: "decompress it first (bzip2 -d)" },
];

/// Byte order marks. UTF-32 comes before UTF-16, because the little-endian mark of UTF-32 begins with the mark of
/// UTF-16.
const MARKS: [Signature; 5] = [
    Signature { name: "utf-32-le", bytes: b"\xff\xfe\0\0", advice: "convert it (iconv -f UTF-32LE -t UTF-8)" },
    Signature { name: "utf-32-be", bytes: b"\0\0\xfe\xff", advice: "convert it (iconv -f UTF-32BE -t UTF-8)" },
    Signature { name: "utf-16-le", bytes: b"\xff\xfe", advice: "convert it (iconv -f UTF-16LE -t UTF-8)" },
    Signature { name: "utf-16-be", bytes: b"\xfe\xff", advice: "convert it (iconv -f UTF-16BE -t UTF-8)" },
    Signature { name: UTF8, bytes: b"\xef\xbb\xbf", advice: "" },
];

const UTF8: &str = "utf-8";

/// Whether zstd data begins with a frame to skip, as those of `pzstd` do.
fn begins_with_skippable_frame(head: &[u8]) -> bool {
    matches!(head, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

/// Returns the encoding of a text without a byte order mark whose characters take two or four bytes, as the places of
/// its NUL bytes tell: they make up at least a quarter of such a text unless few of its characters are below U+0100.
fn unmarked(head: &[u8]) -> Option<&'static str> {
    let head = &head[..head.len().min(4096) / 4 * 4];
    let mut zeros = [0; 4];
    head.iter().zip((0..4).cycle()).for_each(|(&byte, place)| zeros[place] += usize::from(byte == 0));
    match zeros.map(|count| 8 * count > head.len()) {
        [false, _, true, true] => Some("utf-32-le"),
        [true, true, _, false] => Some("utf-32-be"),
        [false, true, false, true] => Some("utf-16-le"),
        [true, false, true, false] => Some("utf-16-be"),
        _ => None,
    }
}

/// The format of a file, as recognised from its first bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileFormat {
    pub path: String,
    /// `gzip`, `zstd`, `parquet`, `zip`, `xz` or `bzip2`, if the text begins with the magic number of that format.
    pub magic: Option<&'static str>,
    /// The encoding of the byte order mark at the beginning of the text, or UTF-16 or UTF-32 without a mark.
    pub bom: Option<&'static str>,
    /// Whether the text has carriage returns but no line feed.
    pub cr_only: bool,
}

impl FileFormat {
    /// Examines the first bytes of a text.
    pub(crate) fn of(path: &Path, head: &[u8]) -> Self {
        // bzip2: "BZh", a digit, and the magic number of the first block.
        let begins = |magic: &Signature| match magic.name {
            "bzip2" => head.starts_with(b"BZh") && head.get(4..10) == Some(magic.bytes),
            "zstd" => head.starts_with(magic.bytes) || begins_with_skippable_frame(head),
            _ => head.starts_with(magic.bytes),
        };
        FileFormat {
            path: path.to_string_lossy().into_owned(),
            magic: MAGIC.iter().find(|magic| begins(magic)).map(|m| m.name),
            bom: MARKS
                .iter()
                .find(|mark| head.starts_with(mark.bytes))
                .map_or_else(|| unmarked(head), |mark| Some(mark.name)),
            cr_only: false,
        }
    }

    /// Whether the file appears to be UTF-8 text whose lines end in a line feed.
    pub fn is_text(&self) -> bool {
        self.magic.is_none() && self.bom.is_none_or(|bom| bom == UTF8) && !self.cr_only
    }

    /// Returns the error for a file that is not text, or `None` if it is text. `decoded` is true if the examined bytes
    /// are the output of a decoder.
    pub(crate) fn error(&self, path: &Path, decoded: bool) -> Option<Error> {
        if self.is_text() {
            return None;
        }
        let find =
            |among: &'static [Signature], name: Option<&str>| among.iter().find(|known| Some(known.name) == name);
        let (what, advice) = if let Some(magic) = find(&MAGIC, self.magic) {
            let renamed = decoded || is_stdin(path);
            let advice = match magic.name {
                "gzip" | "zstd" if renamed => "decompress it first",
                "parquet" if renamed => "give it as a separate file whose name ends in .parquet",
                _ => magic.advice,
            };
            let is = if decoded { "contains" } else { "is" };
            (format!("{is} {} data, not text", magic.name), advice)
        } else if let Some(mark) = find(&MARKS, self.bom.filter(|bom| *bom != UTF8)) {
            let encoding = mark.name[..6].to_uppercase();
            (format!("is {encoding}, not UTF-8"), mark.advice)
        } else {
            let advice = "convert it (tr '\\r' '\\n')";
            ("its lines end in a carriage return alone".into(), advice)
        };
        Some(Error::NotText { path: path.into(), what, advice })
    }
}

/// A decoder of the members of a gzip file, which zeros may follow, as in gzip: tapes and block devices pad files.
pub(crate) struct Gz {
    /// Always there, except while the next member replaces it.
    member: Option<GzDecoder<BufReader<Hashed>>>,
}

impl Gz {
    fn member(&mut self) -> &mut GzDecoder<BufReader<Hashed>> {
        self.member.as_mut().expect("is replaced at once")
    }

    fn rest(&mut self) -> BufReader<Hashed> {
        self.member.take().expect("is replaced at once").into_inner()
    }
}

impl Read for Gz {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.member().read(buf)?;
            if read > 0 || buf.is_empty() {
                return Ok(read);
            }
            let rest = self.member().get_mut();
            loop {
                let bytes = rest.fill_buf()?;
                if bytes.is_empty() {
                    return Ok(0);
                }
                let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
                let more = zeros < bytes.len();
                rest.consume(zeros);
                if more {
                    break;
                }
            }
            let rest = self.rest();
            self.member = Some(GzDecoder::new(rest));
        }
    }
}

/// An open corpus file.
pub(crate) enum Source {
    Plain(Hashed),
    Column(Blocks),
    Gz(Box<Gz>),
    Zst(zstd::Decoder<'static, BufReader<Hashed>>),
}

impl Source {
    /// Opens a text file; the suffixes `.gz` and `.zst` select a decoder.
    pub(crate) fn open(path: &Path, progress: &Progress) -> Result<Self> {
        let raw = Hashed::open(path, progress)?;
        let suffix = path.extension().map(|suffix| suffix.to_ascii_lowercase());
        let (suffix, format) = match suffix.as_ref().and_then(|suffix| suffix.to_str()) {
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
            "gzip" => Source::Gz(Box::new(Gz { member: Some(GzDecoder::new(buffered)) })),
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
            Source::Gz(decoder) => &mut decoder.member().get_mut().get_mut().unreported,
            Source::Zst(decoder) => &mut decoder.get_mut().get_mut().unreported,
            Source::Column(blocks) => &mut blocks.unreported,
        })
    }

    /// Returns the number of bytes of the file as stored, and their hash. The rest of the file is read first, because a
    /// decoder may stop before the end of the file (at padding). A table is read from the beginning, because only
    /// Python has read it so far.
    pub(crate) fn into_hash(self, path: &Path, progress: &Progress) -> Result<(u64, u128)> {
        let mut raw = match self {
            Source::Plain(raw) => raw,
            Source::Gz(mut decoder) => decoder.rest().into_inner(),
            Source::Zst(decoder) => decoder.finish().into_inner(),
            Source::Column(_) => Hashed::open(path, progress)?,
        };
        io::copy(&mut raw, &mut io::sink()).map_err(|e| Error::io(path, e))?;
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
