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

/// Declares a struct of options, which Python passes as a mapping with the names of the fields as keys. For each field,
/// the flag or argument that sets it, and its expected values, are named in the error for a wrong value. The field in
/// brackets is an object that may be missing or None.
macro_rules! options {
    (
        $(#[$doc:meta])* struct $name:ident {
            $($field:ident: $type:ty = $option:literal, $expected:expr;)+
            $([$object:ident])?
        }
    ) => {
        $(#[$doc])*
        pub struct $name {
            $(pub $field: $type,)+
            $($object: Option<Py<PyAny>>,)?
        }

        impl<'a, 'py> FromPyObject<'a, 'py> for $name {
            type Error = PyErr;

            fn extract(options: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
                $(let $field = {
                    let key = stringify!($field);
                    let why = |_| Error::invalid($option, format!("the options have no key {key:?}"));
                    convert(&options.get_item(key).map_err(why)?, $option, $expected)?
                };)+
                $(let $object = options.get_item(stringify!($object)).ok();
                let $object = $object.filter(|object| !object.is_none()).map(Bound::unbind);)?
                Ok($name { $($field,)+ $($object,)? })
            }
        }
    };
}

/// Declares functions that convert arguments. The string is the name of the argument in error messages.
macro_rules! arguments {
    ($($function:ident: $type:ty = $name:literal, $expected:expr;)+) => {
        $(pub fn $function(value: &Bound<'_, PyAny>) -> PyResult<$type> {
            convert(value, $name, $expected)
        })+
    };
}

arguments! {
    min_df: u64 = "min_df", WHOLE;
    max_terms: Option<usize> = "max_terms", "None or a whole number";
    row: u64 = "row", WHOLE;
    rows: Vec<u64> = "rows", "row numbers from 0 to 2^64 - 1";
    samples: usize = "samples", WHOLE;
    copies: u64 = "--copies", WHOLE;
    dir: PathBuf = "dir", PATH;
    output: Option<PathBuf> = "--output", PATH;
}

options! {
    /// Options for reading files. `prepare` is a function that receives a list of rows and returns a list of as many rows;
    /// see `ReadOptions::prepare`.
    struct Reading {
        encoding_errors: String = "--encoding-errors", STRING;
        max_line_bytes: usize = "--max-line-bytes", WHOLE;
        threads: usize = "--threads", WHOLE;
        [prepare]
    }
}

options! {
    /// Options for splitting text into words. The attribute `hash` of `pieces` is the hash of the model's tokenizer, in
    /// hexadecimal notation.
    struct Words {
        tokenizer: String = "--tokenizer", STRING;
        lowercase: bool = "--lowercase", BOOL;
        nfkc: bool = "--nfkc", BOOL;
        [pieces]
    }
}

options! {
    /// Options of UNA.
    struct Drawing {
        seed: u64 = "--seed", WHOLE;
        epoch: u64 = "--epoch", WHOLE;
        copy: u64 = "copy", WHOLE;
        beta: f64 = "--beta", "a number from 0 to 1";
        radius: Option<usize> = "--radius", "a whole number of ranks, at least 1";
        surface: Option<String> = "--surface", STRING;
        replace_which: String = "--replace-which", STRING;
        replace_with: String = "--replace-with", STRING;
        mode: String = "--mode", STRING;
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

/// Converts row numbers in a buffer, such as a NumPy array.
pub fn row_array(value: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let expected = "an array of uint64 row numbers";
    let buffer: PyBuffer<u64> = convert(value, "rows", expected)?;
    buffer.to_vec(value.py())
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

/// Converts the files of a corpus: a list in which each item is a path, or an object that decodes a column of a table.
pub fn inputs(value: &Bound<'_, PyAny>) -> PyResult<Vec<Input>> {
    let items: Vec<Bound<'_, PyAny>> = convert(value, "paths", "a list of paths")?;
    let input = |item: Bound<'_, PyAny>| {
        if !item.hasattr("next_block")? {
            return Ok(Input::from(convert::<PathBuf>(&item, "paths", PATH)?));
        }
        let name: String = item.getattr("column")?.extract()?;
        let column: Box<dyn Column> = Box::new(Decoded(item.clone().unbind()));
        Ok(Input { path: item.getattr("path")?.extract()?, column: Some((name, column)) })
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
