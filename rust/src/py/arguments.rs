//! Converts arguments from Python. A value of the wrong type raises an `InputError` that names the argument.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedStr;
use pyo3::types::{PyBytes, PyString};

use crate::text::reader::{Column, EncodingErrors, Input, Prepare, ReadOptions};
use crate::text::tokenize::Rule;
use crate::una::files::Compression;
use crate::una::options::{Named, Options, default_surface};
use crate::una::radius::default_radius;
use crate::{Error, Tokenizer};

const WHOLE: &str = "a whole number from 0 to 2^64 - 1";
const PATH: &str = "a path (str or os.PathLike)";
const STRING: &str = "a str";
const BOOL: &str = "True or False";

/// Converts `value`. If its type or value is wrong, the error message says that `name` must be `expected`.
fn convert<'py, T: for<'a> FromPyObject<'a, 'py>>(
    value: &Bound<'py, PyAny>,
    name: &'static str,
    expected: &str,
) -> PyResult<T> {
    value.extract().map_err(|_| wrong(value, name, expected))
}

fn wrong(value: &Bound<'_, PyAny>, name: &'static str, expected: &str) -> PyErr {
    let given = value.repr().map_or("?".into(), |repr| repr.to_string());
    let mut given: String = given.chars().take(60).collect();
    if given.chars().count() == 60 {
        given.push_str("...");
    }
    Error::invalid(name, format!("must be {expected}, got {given}")).into()
}

/// Converts `mapping[key]`. Error messages begin with `option`, the flag or argument that sets the value.
fn field<'py, T: for<'a> FromPyObject<'a, 'py>>(
    mapping: &Bound<'py, PyAny>,
    key: &'static str,
    option: &'static str,
    expected: &str,
) -> PyResult<T> {
    let missing = |_| Error::invalid(option, format!("the options have no key {key:?}"));
    let value = mapping.get_item(key).map_err(missing)?;
    convert(&value, option, expected)
}

/// Options for reading files. Python passes a mapping with these keys.
pub struct Reading {
    encoding_errors: String,
    max_line_bytes: usize,
    pub threads: usize,
    /// A function that receives a list of rows and returns a list of as many rows; see `ReadOptions::prepare`.
    prepare: Option<Py<PyAny>>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Reading {
    type Error = PyErr;

    fn extract(options: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Reading {
            encoding_errors: field(&options, "encoding_errors", "--encoding-errors", STRING)?,
            max_line_bytes: field(&options, "max_line_bytes", "--max-line-bytes", WHOLE)?,
            threads: field(&options, "threads", "--threads", WHOLE)?,
            prepare: options.get_item("prepare").ok().map(Bound::unbind),
        })
    }
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

/// Converts the name of a compression format.
pub fn compression(name: &str) -> PyResult<Compression> {
    match name {
        "none" => Ok(Compression::None),
        "gz" => Ok(Compression::Gzip),
        "zst" => Ok(Compression::Zstd),
        other => {
            let why = format!("{other:?} is unknown; choose none, gz or zst");
            Err(Error::invalid("--compression", why).into())
        }
    }
}

/// Options for splitting text into words. Python passes a mapping with these keys.
pub struct Words {
    tokenizer: String,
    lowercase: bool,
    nfkc: bool,
    /// Hash of the model's tokenizer, in hexadecimal notation.
    pieces: Option<String>,
}

impl<'a, 'py> FromPyObject<'a, 'py> for Words {
    type Error = PyErr;

    fn extract(options: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Words {
            tokenizer: field(&options, "tokenizer", "--tokenizer", STRING)?,
            lowercase: field(&options, "lowercase", "--lowercase", BOOL)?,
            nfkc: field(&options, "nfkc", "--nfkc", BOOL)?,
            pieces: match options.get_item("pieces") {
                Ok(pieces) if !pieces.is_none() => Some(pieces.getattr("hash")?.extract()?),
                _ => None,
            },
        })
    }
}

impl Words {
    /// Converts and checks the options.
    pub fn tokenizer(&self) -> PyResult<Tokenizer> {
        let tokenizer = Tokenizer::new(&self.tokenizer, self.lowercase, self.nfkc)?;
        if tokenizer.rule != Rule::Wordpieces {
            return Ok(tokenizer);
        }
        let hash = self.pieces.as_deref().unwrap_or("");
        let pieces = u128::from_str_radix(hash, 16).map_err(|_| {
            let why = "wordpieces needs the tokenizer of a model; name it with --model";
            Error::invalid("--tokenizer", why)
        })?;
        Ok(Tokenizer::of_pieces(pieces))
    }
}

/// Options of UNA. Python passes a mapping with these keys.
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

impl<'a, 'py> FromPyObject<'a, 'py> for Drawing {
    type Error = PyErr;

    fn extract(options: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let radius = "a whole number of ranks, at least 1";
        Ok(Drawing {
            seed: field(&options, "seed", "--seed", WHOLE)?,
            epoch: field(&options, "epoch", "--epoch", WHOLE)?,
            copy: field(&options, "copy", "copy", WHOLE)?,
            beta: field(&options, "beta", "--beta", "a number from 0 to 1")?,
            radius: field(&options, "radius", "--radius", radius)?,
            surface: field(&options, "surface", "--surface", STRING)?,
            replace_which: field(&options, "replace_which", "--replace-which", STRING)?,
            replace_with: field(&options, "replace_with", "--replace-with", STRING)?,
            mode: field(&options, "mode", "--mode", STRING)?,
        })
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

/// Converts the argument `min_df`.
pub fn min_df(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    convert(value, "min_df", WHOLE)
}

/// Converts the argument `max_terms`.
pub fn max_terms(value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    convert(value, "max_terms", "None or a whole number")
}

/// Converts the argument `row`.
pub fn row(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    convert(value, "row", WHOLE)
}

/// Converts the argument `samples`.
pub fn samples(value: &Bound<'_, PyAny>) -> PyResult<usize> {
    convert(value, "samples", WHOLE)
}

/// Converts the argument `copies`.
pub fn copies(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    convert(value, "--copies", WHOLE)
}

/// Converts the argument `dir`.
pub fn dir(value: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    convert(value, "dir", PATH)
}

/// Converts the argument `output`.
pub fn output(value: &Bound<'_, PyAny>) -> PyResult<Option<PathBuf>> {
    convert(value, "--output", PATH)
}

/// Converts a list of row numbers.
pub fn rows(value: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let expected = "row numbers from 0 to 2^64 - 1";
    convert(value, "rows", expected)
}

/// Converts row numbers in a buffer, such as a NumPy array.
pub fn row_array(value: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let expected = "an array of uint64 row numbers";
    let buffer: PyBuffer<u64> = convert(value, "rows", expected)?;
    buffer.to_vec(value.py())
}

/// A table column that is decoded in Python: an object with `path`, `column` and `next_block()`.
struct Decoded(Py<PyAny>);

impl Column for Decoded {
    fn next_block(&mut self) -> io::Result<Option<(Vec<u8>, u64)>> {
        Python::attach(|py| self.0.call_method0(py, "next_block")?.extract(py))
            .map_err(io::Error::other)
    }
}

/// Converts the files of a corpus: a list in which each item is a path, or an object that decodes a column of a table.
pub fn inputs(value: &Bound<'_, PyAny>) -> PyResult<Vec<Input>> {
    let items: Vec<Bound<'_, PyAny>> = convert(value, "paths", "a list of paths")?;
    let input = |item: Bound<'_, PyAny>| {
        if !item.hasattr("next_block")? {
            return Ok(Input::from(convert::<PathBuf>(&item, "paths", PATH)?));
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
    /// A reference to the memory of the Python string.
    Borrowed(PyBackedStr),
    /// A copy in which each lone surrogate is replaced by U+FFFD.
    Repaired(String),
}

impl Text {
    /// Converts a string.
    fn new(text: &Bound<'_, PyString>) -> PyResult<Self> {
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

/// Converts the argument `text`.
pub fn text(value: &Bound<'_, PyAny>) -> PyResult<Text> {
    let text = value.cast::<PyString>();
    Text::new(text.map_err(|_| wrong(value, "text", STRING))?)
}

/// Converts the argument `texts`.
pub fn texts(value: &Bound<'_, PyAny>) -> PyResult<Vec<Text>> {
    let items: Vec<Bound<'_, PyAny>> = convert(value, "texts", "a list of strings")?;
    let text = |item: Bound<'_, PyAny>| match item.cast::<PyString>() {
        Ok(text) => Text::new(text),
        Err(_) => Err(wrong(&item, "texts", "a list of strings")),
    };
    items.into_iter().map(text).collect()
}
