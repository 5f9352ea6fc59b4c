//! Conversions between Python and the core: options, inputs and texts from Python, tuples to Python.

use std::io;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::index::stats::Counts;
use crate::index::store::Stored;
pub use crate::index::store::le_bytes;
use crate::text::reader::{Column, EncodingErrors, FileRecord, Input, ReadOptions};
use crate::una::options::{Named, Options, Report, default_surface};
use crate::{Error, Tokenizer};

/// Options for reading: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Reading {
    encoding_errors: String,
    max_line_bytes: usize,
    pub threads: usize,
}

impl Reading {
    /// Converts and checks the options.
    pub fn options(&self) -> PyResult<ReadOptions> {
        let encoding_errors = match self.encoding_errors.as_str() {
            "strict" => EncodingErrors::Strict,
            "replace" => EncodingErrors::Replace,
            other => {
                let why = format!("{other:?} is unknown; choose strict or replace");
                return Err(Error::invalid("--encoding-errors", why).into());
            }
        };
        Ok(ReadOptions {
            encoding_errors,
            max_line_bytes: self.max_line_bytes,
            ..ReadOptions::default()
        })
    }
}

/// Options for words: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Words {
    tokenizer: String,
    lowercase: bool,
    nfkc: bool,
}

impl Words {
    /// Converts and checks the options.
    pub fn tokenizer(&self) -> PyResult<Tokenizer> {
        Ok(Tokenizer::new(&self.tokenizer, self.lowercase, self.nfkc)?)
    }
}

/// Options of UNA: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Drawing {
    seed: u64,
    epoch: u64,
    copy: u64,
    beta: f64,
    radius: Option<usize>,
    surface: Option<String>,
    replace_which: String,
    replace_with: String,
    mode: String,
}

impl Drawing {
    /// Converts the options and checks them against the index.
    pub fn options(&self, index: &crate::Index) -> PyResult<Options> {
        let surface = match &self.surface {
            Some(name) => Named::from_name(name)?,
            None => default_surface(index),
        };
        let options = Options {
            seed: self.seed,
            epoch: self.epoch,
            copy: self.copy,
            beta: self.beta,
            radius: self.radius.unwrap_or_else(|| index.default_radius()),
            surface,
            replace_which: Named::from_name(&self.replace_which)?,
            replace_with: Named::from_name(&self.replace_with)?,
            mode: Named::from_name(&self.mode)?,
        };
        Ok(options.checked(index)?)
    }
}

/// A column that is decoded in Python: an object with `path`, `column` and `next_block()`.
struct Decoded(Py<PyAny>);

impl Column for Decoded {
    fn next_block(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        Python::attach(|py| self.0.call_method0(py, "next_block")?.extract(py))
            .map_err(io::Error::other)
    }
}

/// Converts paths and objects that decode a column.
pub fn inputs(items: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Input>> {
    let input = |item: Bound<'_, PyAny>| {
        if !item.hasattr("next_block")? {
            return Ok(Input::from(item.extract::<PathBuf>()?));
        }
        let name: String = item.getattr("column")?.extract()?;
        let column: Box<dyn Column> = Box::new(Decoded(item.clone().unbind()));
        Ok(Input {
            path: item.getattr("path")?.extract()?,
            column: Some((name, column)),
        })
    };
    items.into_iter().map(input).collect()
}

/// A Python string as UTF-8.
pub enum Text {
    /// A view of the memory of the Python string.
    Borrowed(PyBackedStr),
    /// A copy in which each lone surrogate is replaced by U+FFFD.
    Repaired(String),
}

impl Text {
    /// Converts a string.
    pub fn new(text: &Bound<'_, PyString>) -> PyResult<Self> {
        if let Ok(text) = PyBackedStr::try_from(text.clone()) {
            return Ok(Text::Borrowed(text));
        }
        let wide = text.call_method1("encode", ("utf-16-le", "surrogatepass"))?;
        let units: Vec<u16> = wide
            .cast::<PyBytes>()?
            .as_bytes()
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .collect();
        Ok(Text::Repaired(String::from_utf16_lossy(&units)))
    }

    /// Converts strings.
    pub fn list(texts: &[Bound<'_, PyString>]) -> PyResult<Vec<Text>> {
        texts.iter().map(Text::new).collect()
    }

    /// Returns the number of texts that were repaired.
    pub fn repaired(texts: &[Text]) -> u64 {
        let repaired = texts.iter().filter(|t| matches!(t, Text::Repaired(_)));
        repaired.count() as u64
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Repaired(text) => text,
        }
    }
}

/// path, bytes, rows, xxh3, column
pub type FileTuple = (String, u64, u64, String, Option<String>);

/// Converts a file record.
pub fn file_tuple(file: &FileRecord) -> FileTuple {
    let FileRecord {
        path,
        bytes,
        rows,
        xxh3,
        column,
    } = file.clone();
    (path, bytes, rows, xxh3, column)
}

/// documents, rows, blank, wordless, tokens, repaired, terms
pub type CountsTuple = (u64, u64, u64, u64, u64, u64, usize);

/// Converts counts and the number of terms.
pub fn counts_tuple(counts: &Counts, terms: usize) -> CountsTuple {
    let Counts {
        documents,
        rows,
        blank,
        wordless,
        tokens,
        repaired,
    } = *counts;
    (documents, rows, blank, wordless, tokens, repaired, terms)
}

/// Converts the counts and files of an index.
pub fn stored_tuple(stored: &Stored) -> (CountsTuple, Vec<FileTuple>) {
    let counts = counts_tuple(&stored.stats.counts, stored.stats.terms.len());
    (counts, stored.files.iter().map(file_tuple).collect())
}

/// rows, blank, unchanged, words, unseen, replaced, repaired
pub type ReportTuple = (u64, u64, u64, u64, u64, u64, u64);

/// Converts a report.
pub fn report_tuple(report: &Report) -> ReportTuple {
    let Report {
        rows,
        blank,
        unchanged,
        words,
        unseen,
        replaced,
        repaired,
    } = *report;
    (rows, blank, unchanged, words, unseen, replaced, repaired)
}
