//! What is read, and how: input files and their records, and the options for reading.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::text::invalid_utf8::EncodingErrors;
use crate::text::source::Column;

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
