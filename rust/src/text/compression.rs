//! Compressed corpus files: the suffix selects the decoder, and the first bytes must agree with the suffix.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::GzDecoder;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::format::FileFormat;
use crate::text::source::{Blocks, Hashed};

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
