//! Converts arguments from Python. Their types are checked by PyO3, and the values of options by the Python package.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::error::Named;
use crate::text::reader::{Column, Input, Prepare, ReadOptions};
use crate::text::tokenize::Rule;
use crate::una::options::{Options, default_surface};
use crate::una::radius::default_radius;
use crate::{Error, Tokenizer};

/// Options for reading files. `prepare` is a function that receives a list of rows and returns a list of as many rows;
/// see `ReadOptions::prepare`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Reading {
    encoding_errors: String,
    max_line_bytes: usize,
    pub threads: usize,
    #[pyo3(default)]
    prepare: Option<Py<PyAny>>,
}

/// Options for splitting text into words. The attribute `hash` of `pieces` is the hash of the model's tokenizer, in
/// hexadecimal notation.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Words {
    tokenizer: String,
    lowercase: bool,
    nfkc: bool,
    #[pyo3(default)]
    pieces: Option<Py<PyAny>>,
}

/// Options of UNA.
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

impl Reading {
    /// Converts and checks the options.
    pub fn options(&self) -> PyResult<ReadOptions> {
        Ok(ReadOptions {
            encoding_errors: Named::from_name(&self.encoding_errors)?,
            max_line_bytes: self.max_line_bytes,
            prepare: self.prepare.as_ref().map(prepare),
            ..ReadOptions::default()
        })
    }
}

/// Converts a function that changes rows.
fn prepare(function: &Py<PyAny>) -> Prepare {
    let function = Python::attach(|py| function.clone_ref(py));
    Prepare(Arc::new(move |rows: &[&str]| {
        let changed: PyResult<Vec<String>> = Python::attach(|py| {
            let changed = function.call1(py, (rows.to_vec(),))?;
            changed.extract(py)
        });
        match changed {
            Ok(changed) if changed.len() == rows.len() => Ok(changed),
            Ok(_) => Err(io::Error::other("the number of rows was changed")),
            Err(error) => Err(io::Error::other(error)),
        }
    }))
}

impl Words {
    /// Converts and checks the options.
    pub fn tokenizer(&self) -> PyResult<Tokenizer> {
        let tokenizer = Tokenizer::new(&self.tokenizer, self.lowercase, self.nfkc)?;
        if tokenizer.rule != Rule::Wordpieces {
            return Ok(tokenizer);
        }
        let hash = |pieces: &Py<PyAny>| Python::attach(|py| pieces.getattr(py, "hash")?.extract::<String>(py));
        let hash = self.pieces.as_ref().map_or(Ok(String::new()), hash)?;
        let pieces = u128::from_str_radix(&hash, 16).map_err(|_| {
            let why = "wordpieces needs the tokenizer of a model; name it with --model";
            Error::invalid("--tokenizer", why)
        })?;
        Ok(Tokenizer::of_pieces(pieces))
    }
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
            radius: self.radius.unwrap_or_else(|| default_radius(index)),
            surface,
            replace_which: Named::from_name(&self.replace_which)?,
            replace_with: Named::from_name(&self.replace_with)?,
            mode: Named::from_name(&self.mode)?,
        };
        Ok(options.checked(index)?)
    }
}

/// A table column that is decoded in Python: an object with `path`, `column` and `next_block(max_line_bytes)`.
struct Decoded(Py<PyAny>);

impl Column for Decoded {
    fn next_block(&mut self, max_line_bytes: usize) -> io::Result<Option<(Vec<u8>, u64)>> {
        Python::attach(|py| {
            let block = self.0.call_method1(py, "next_block", (max_line_bytes,))?;
            block.extract(py)
        })
        .map_err(io::Error::other)
    }
}

/// A path, or an object that decodes a column of a table.
impl<'py> FromPyObject<'_, 'py> for Input {
    type Error = PyErr;

    fn extract(item: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if !item.hasattr("next_block")? {
            return Ok(Input::from(item.extract::<PathBuf>()?));
        }
        let column: Box<dyn Column> = Box::new(Decoded(item.to_owned().unbind()));
        let name: String = item.getattr("column")?.extract()?;
        Ok(Input { path: item.getattr("path")?.extract()?, column: Some((name, column)) })
    }
}

/// A Python string as UTF-8.
pub enum Text {
    /// A reference to the memory of the Python string.
    Borrowed(PyBackedStr),
    /// A copy in which each lone surrogate is replaced by U+FFFD.
    Repaired(String),
}

impl Text {
    /// Returns the number of texts in which a lone surrogate was replaced.
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

impl<'py> FromPyObject<'_, 'py> for Text {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = value.extract::<PyBackedStr>() {
            return Ok(Text::Borrowed(text));
        }
        let wide = value.cast::<PyString>()?.call_method1("encode", ("utf-16-le", "surrogatepass"))?;
        let bytes: Bound<'_, PyBytes> = wide.cast_into()?;
        let (pairs, _) = bytes.as_bytes().as_chunks();
        let units: Vec<u16> = pairs.iter().map(|&pair| u16::from_le_bytes(pair)).collect();
        Ok(Text::Repaired(String::from_utf16_lossy(&units)))
    }
}
