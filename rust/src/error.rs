//! Errors of the core. Except for I/O errors and interruption, each message is one sentence that says what is wrong,
//! where, and what to do.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of the core.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: no such file; check the path", path.display())]
    NotFound { path: PathBuf },

    #[error(
        "{}: is a directory, but a text file was expected; to read the text files in it, give the pattern '{}'",
        path.display(), path.join("*.txt").display()
    )]
    IsDirectory { path: PathBuf },

    #[error("{}: there is no folder {}; create it, or check the path", path.display(), folder.display())]
    NoFolder { path: PathBuf, folder: PathBuf },

    #[error("{}: the file is empty; it should hold one sentence per line", path.display())]
    EmptyFile { path: PathBuf },

    #[error("{}: the file changed while it was read; read it again when no other program writes to it", path.display())]
    FileChanged { path: PathBuf },

    #[error("{}: {what}; {advice}", path.display())]
    NotText { path: PathBuf, what: String, advice: &'static str },

    #[error("{path}: contains no rows; at least one sentence is needed")]
    NoRows { path: String },

    #[error("{path}: {}; at least one sentence is needed", only_blank(*rows, column.as_deref()))]
    OnlyBlank {
        path: String,
        rows: u64,
        /// The column of a table; `None` for a text file.
        column: Option<String>,
    },

    #[error(
        "{path}: no line contains a word according to the tokenizer {tokenizer}; \
         --tokenizer whitespace accepts any text"
    )]
    NoWords { path: String, tokenizer: &'static str },

    #[error("{}: {place} is not valid UTF-8{}; convert the file, or pass --encoding-errors replace", path.display(), place.in_bytes())]
    InvalidUtf8 { path: PathBuf, place: Place },

    #[error(
        "{}: {place} is longer than {limit} bytes; check that it is one sentence, \
         or raise the limit with --max-line-bytes", path.display()
    )]
    LineTooLong { path: PathBuf, place: Place, limit: usize },

    #[error("{}: not a readable cse index ({why}); build it again with cse build-tfidf", path.display())]
    IndexDamaged { path: PathBuf, why: String },

    #[error(
        "{}: belongs to another index than {}; build both again with cse build-tfidf, or remove the matrix",
        matrix.display(), index.display()
    )]
    MatrixOfOther { matrix: PathBuf, index: PathBuf },

    #[error(
        "{}: the index has format version {found}, but this cse reads version {supported}; \
         build it again with cse build-tfidf", path.display()
    )]
    IndexVersion { path: PathBuf, found: String, supported: u32 },

    #[error(
        "{name}: its tokenizer is {found}, but the previous index has {wanted}; merge indexes with the same tokenizer"
    )]
    TokenizersDiffer { name: String, found: String, wanted: String },

    #[error(
        "an index opened with min_df or max_terms does not contain all terms; open it without these options to save it"
    )]
    IsFiltered,

    #[error("{name}: {why}")]
    Invalid { name: &'static str, why: String },

    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },

    #[error("standard output: is closed; redirect it to a file or a pipe, or name a file with -o")]
    OutputClosed,

    #[error("interrupted")]
    Interrupted,
}

fn only_blank(rows: u64, column: Option<&str>) -> String {
    match column {
        Some(column) => format!("column {column} is empty or null in all {rows} rows"),
        None => format!("all {rows} lines are blank"),
    }
}

/// A line or a row in a file, counted from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A line of a text file.
    Line {
        line: u64,
        /// Byte offset in the decompressed text, from 0; `None` if it is not known.
        offset: Option<u64>,
    },
    /// A row of a table; its number can differ from the line number in the file.
    Row { row: u64, column: String },
}

impl Place {
    /// Returns the position of a line, or of a row of a table if `column` is given.
    pub(crate) fn new(column: Option<&String>, line: u64, offset: Option<u64>) -> Self {
        match column {
            Some(column) => Place::Row { row: line, column: column.clone() },
            None => Place::Line { line, offset },
        }
    }

    fn in_bytes(&self) -> String {
        match self {
            Place::Line { offset: Some(offset), .. } => format!(" (byte offset {offset})"),
            _ => String::new(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Place::Line { line, .. } => write!(f, "line {line}"),
            Place::Row { row, column } => write!(f, "row {row} of column {column}"),
        }
    }
}

/// The result of an operation of the core.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns an I/O error that names the path. The kinds "not found" and "is a directory" have variants of their own.
    pub fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::NotFound => Error::NotFound { path },
            io::ErrorKind::IsADirectory => Error::IsDirectory { path },
            _ => Error::Io { path, source },
        }
    }

    /// Returns the error for an index file that cannot be read.
    pub fn damaged(path: &Path, why: impl Into<String>) -> Self {
        Error::IndexDamaged { path: path.to_path_buf(), why: why.into() }
    }

    /// Returns the error for an argument that is not valid.
    pub fn invalid(name: &'static str, why: impl Into<String>) -> Self {
        Error::Invalid { name, why: why.into() }
    }
}

/// An option whose values have names.
pub trait Named: Copy + 'static {
    /// The name of the option, for messages.
    const FLAG: &'static str;
    /// The values and their names.
    const NAMES: &'static [(&'static str, Self)];

    /// Returns the value with this name; an unknown name is an error that lists the known names.
    fn from_name(name: &str) -> Result<Self> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|&(_, value)| value).ok_or_else(|| {
            let names: Vec<&str> = Self::NAMES.iter().map(|(name, _)| *name).collect();
            let why = format!("{name:?} is unknown; choose {}", names.join(" or "));
            Error::invalid(Self::FLAG, why)
        })
    }
}
