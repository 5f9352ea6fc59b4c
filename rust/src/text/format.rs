//! Recognises, from its first bytes, a file that is not UTF-8 text.

use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::text::source::is_stdin;

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
