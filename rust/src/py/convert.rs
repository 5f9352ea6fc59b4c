//! What crosses between Python and the core: options, inputs and texts on the way in, tuples on the way out.

use std::io;
use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::corpus::{self, EncodingErrors, FileRecord, Input, ReadOptions};
use crate::options::{Named, Options, Report, default_surface};
use crate::stats::Counts;
use crate::store::{self, Stored};
use crate::{Error, Tokenizer};

/// What Python says about reading: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Reading {
    encoding_errors: String,
    max_line_bytes: usize,
    pub threads: usize,
}

impl Reading {
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

/// What Python says about words: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Words {
    tokenizer: String,
    lowercase: bool,
    nfkc: bool,
}

impl Words {
    pub fn tokenizer(&self) -> PyResult<Tokenizer> {
        Ok(Tokenizer::new(&self.tokenizer, self.lowercase, self.nfkc)?)
    }
}

/// What Python says about drawing: a mapping with these keys.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Drawing {
    seed: u64,
    epoch: u64,
    copy: u64,
    beta: f64,
    radius: Option<usize>,
    surface: Option<String>,
    step2: String,
    step3: String,
    mode: String,
}

impl Drawing {
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
            step2: Named::from_name(&self.step2)?,
            step3: Named::from_name(&self.step3)?,
            mode: Named::from_name(&self.mode)?,
        };
        Ok(options.checked(index)?)
    }
}

/// A column that Python decodes: an object with `path`, `column` and `next_block()`.
struct Decoded(Py<PyAny>);

impl corpus::Column for Decoded {
    fn next_block(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        Python::attach(|py| self.0.call_method0(py, "next_block")?.extract(py))
            .map_err(io::Error::other)
    }
}

/// Paths, and objects that decode a column.
pub fn inputs(items: Vec<Bound<'_, PyAny>>) -> PyResult<Vec<Input>> {
    let input = |item: Bound<'_, PyAny>| {
        if !item.hasattr("next_block")? {
            return Ok(Input::from(item.extract::<PathBuf>()?));
        }
        let name: String = item.getattr("column")?.extract()?;
        let column: Box<dyn corpus::Column> = Box::new(Decoded(item.clone().unbind()));
        Ok(Input {
            path: item.getattr("path")?.extract()?,
            column: Some((name, column)),
        })
    };
    items.into_iter().map(input).collect()
}

/// A Python string as UTF-8.
pub enum Text {
    /// Where it lies in Python's memory.
    Borrowed(PyBackedStr),
    /// Lone surrogates became U+FFFD, one for one.
    Repaired(String),
}

impl Text {
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

    pub fn list(texts: &[Bound<'_, PyString>]) -> PyResult<Vec<Text>> {
        texts.iter().map(Text::new).collect()
    }

    pub fn as_str(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Repaired(text) => text,
        }
    }
}

/// path, bytes, rows, xxh3, column
pub type FileTuple = (String, u64, u64, String, Option<String>);

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

pub fn stored_tuple(stored: &Stored) -> (CountsTuple, Vec<FileTuple>) {
    let counts = counts_tuple(&stored.stats.counts, stored.stats.terms.len());
    (counts, stored.files.iter().map(file_tuple).collect())
}

pub fn serialize(stored: &Stored) -> crate::Result<Vec<u8>> {
    store::serialize(stored.tokenizer, &stored.files, &stored.stats)
}

/// rows, blank, unchanged, words, unseen, replaced, repaired
pub type ReportTuple = (u64, u64, u64, u64, u64, u64, u64);

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
