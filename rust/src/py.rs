//! The Python module `cse._core`: everything that touches PyO3, and nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIsADirectoryError, PyKeyboardInterrupt, PyOSError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::jobs::{self, Writing};
use crate::store::{self, Stored};
use crate::{Error, Tokenizer, View, corpus, doctor, draw};

mod convert;
mod numbers;

use convert::{
    CountsTuple, Drawing, FileTuple, Reading, ReportTuple, Text, Words, counts_tuple, file_tuple,
    inputs, report_tuple, serialize, stored_tuple,
};
use numbers::Numbers;

create_exception!(
    cse,
    InputError,
    PyValueError,
    "The user's input or flags are at fault; the message says what, where and what to do."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::NotFound { .. } => PyFileNotFoundError::new_err(message),
            Error::IsDirectory { .. } => PyIsADirectoryError::new_err(message),
            Error::Io { source, path } => match source.raw_os_error() {
                Some(code) => PyOSError::new_err((code, source.to_string(), path)),
                // What a decoder written in Python raised comes out as it was.
                None => source
                    .downcast::<PyErr>()
                    .unwrap_or_else(|_| PyOSError::new_err(message)),
            },
            Error::Interrupted => PyKeyboardInterrupt::new_err(()),
            _ => InputError::new_err(message),
        }
    }
}

/// How far a call has come, in bytes read; `cancel()` stops it.
#[pyclass(frozen)]
#[derive(Default)]
struct Progress(Arc<corpus::Progress>);

#[pymethods]
impl Progress {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    #[getter]
    fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }

    #[getter]
    fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }
}

fn shared(progress: Option<&Progress>) -> Arc<corpus::Progress> {
    progress.map(|p| p.0.clone()).unwrap_or_default()
}

#[pyclass(frozen)]
struct Index(Arc<crate::Index>);

impl Index {
    fn new(stored: Stored, view: View) -> PyResult<Self> {
        Ok(Index(Arc::new(stored.into_index(view)?)))
    }
}

#[pymethods]
impl Index {
    #[staticmethod]
    fn open(py: Python<'_>, dir: PathBuf, min_df: u64, max_terms: Option<usize>) -> PyResult<Self> {
        let view = View { min_df, max_terms };
        let index = py.detach(|| store::open(&dir, view))?;
        Ok(Index(Arc::new(index)))
    }

    #[staticmethod]
    #[pyo3(signature = (paths, words, reading, progress=None))]
    fn build(
        py: Python<'_>,
        paths: Vec<Bound<'_, PyAny>>,
        words: Words,
        reading: Reading,
        progress: Option<&Progress>,
    ) -> PyResult<Self> {
        let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
        let (inputs, progress) = (inputs(paths)?, shared(progress));
        let work = || jobs::build(inputs, tokenizer, read, reading.threads, &progress);
        Index::new(py.detach(work)?, View::default())
    }

    /// Counts texts in memory.
    #[staticmethod]
    fn from_texts(
        py: Python<'_>,
        texts: Vec<Bound<'_, PyString>>,
        words: Words,
        min_df: u64,
        max_terms: Option<usize>,
    ) -> PyResult<Self> {
        let (tokenizer, texts) = (words.tokenizer()?, Text::list(&texts)?);
        let work = || jobs::build_from_texts(texts.iter().map(Text::as_str), tokenizer);
        Index::new(py.detach(work)?, View { min_df, max_terms })
    }

    /// Writes the index of several folders' corpora together into `dir`, and opens it.
    #[staticmethod]
    fn merge_to(py: Python<'_>, dir: PathBuf, shards: Vec<PathBuf>) -> PyResult<Self> {
        Index::new(
            py.detach(|| jobs::merge_to(&dir, &shards))?,
            View::default(),
        )
    }

    /// The file's bytes, from `to_bytes`.
    #[staticmethod]
    fn from_bytes(
        py: Python<'_>,
        bytes: &[u8],
        min_df: u64,
        max_terms: Option<usize>,
    ) -> PyResult<Self> {
        let stored = py.detach(|| store::deserialize(bytes, Path::new("bytes")))?;
        Index::new(stored, View { min_df, max_terms })
    }

    /// What `save` writes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let index = &self.0;
        if !index.is_whole() {
            return Err(Error::IsView.into());
        }
        let work = || store::serialize(index.tokenizer, &index.files, &index.stats);
        Ok(PyBytes::new(py, &py.detach(work)?))
    }

    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        let bytes = self.to_bytes(py)?;
        let bytes = bytes.as_bytes();
        Ok(py.detach(|| store::save_bytes(&dir, bytes))?)
    }

    /// indptr and indices (little-endian i64) and values (f64) of a CSR matrix, for the caller to keep and change.
    fn transform<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Bound<'py, PyString>>,
    ) -> PyResult<[Bound<'py, PyByteArray>; 3]> {
        let texts = Text::list(&texts)?;
        let csr = py.detach(|| jobs::transform(&self.0, texts.iter().map(Text::as_str)));
        Ok([
            PyByteArray::new(py, &store::le_bytes(&csr.indptr, |x| x.to_le_bytes())),
            PyByteArray::new(py, &store::le_bytes(&csr.indices, |x| x.to_le_bytes())),
            PyByteArray::new(py, &store::le_bytes(&csr.values, |x| x.to_le_bytes())),
        ])
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Name, lower case, NFKC.
    #[getter]
    fn tokenizer(&self) -> (&'static str, bool, bool) {
        let tokenizer = self.0.tokenizer;
        (tokenizer.name(), tokenizer.lowercase, tokenizer.nfkc)
    }

    #[getter]
    fn counts(&self) -> CountsTuple {
        counts_tuple(&self.0.stats.counts, self.0.len())
    }

    #[getter]
    fn files(&self) -> Vec<FileTuple> {
        self.0.files.iter().map(file_tuple).collect()
    }

    #[getter]
    fn default_radius(&self) -> usize {
        self.0.default_radius()
    }

    fn terms(&self) -> Vec<&str> {
        (0..self.0.len()).map(|t| self.0.term(t)).collect()
    }

    /// `df`, `idf`, `max_score` or `by_rank`.
    fn numbers(&self, name: String) -> Numbers {
        let index = self.0.clone();
        Numbers { index, name }
    }

    fn augment(
        &self,
        py: Python<'_>,
        texts: Vec<Bound<'_, PyString>>,
        rows: Vec<u64>,
        drawing: Drawing,
    ) -> PyResult<(Vec<String>, ReportTuple)> {
        let options = drawing.options(&self.0)?;
        let texts = Text::list(&texts)?;
        let (negatives, mut report) = py.detach(|| {
            let texts = texts.iter().map(Text::as_str);
            jobs::augment_texts(&self.0, options, texts.zip(rows))
        });
        let repaired = texts.iter().filter(|t| matches!(t, Text::Repaired(_)));
        report.repaired = repaired.count() as u64;
        Ok((negatives, report_tuple(&report)))
    }

    /// The output, and for each replaced word: old, new, characters in the input and in the output, p, both ranks.
    fn replacements(
        &self,
        text: &Bound<'_, PyString>,
        row: u64,
        drawing: Drawing,
    ) -> PyResult<(String, Vec<jobs::Replaced>)> {
        let (options, text) = (drawing.options(&self.0)?, Text::new(text)?);
        Ok(jobs::replacements(&self.0, options, text.as_str(), row))
    }

    /// For each word: surface, seen, document frequency, tf-idf, p, rank from 1, samples.
    fn explain(
        &self,
        text: &Bound<'_, PyString>,
        samples: usize,
        drawing: Drawing,
    ) -> PyResult<Vec<jobs::Explained>> {
        let (options, text) = (drawing.options(&self.0)?, Text::new(text)?);
        Ok(jobs::explain(&self.0, options, text.as_str(), samples))
    }

    #[pyo3(signature = (paths, output, copies, as_records, drawing, reading, progress=None))]
    #[allow(clippy::too_many_arguments)]
    fn augment_files(
        &self,
        py: Python<'_>,
        paths: Vec<Bound<'_, PyAny>>,
        output: Option<PathBuf>,
        copies: u64,
        as_records: bool,
        drawing: Drawing,
        reading: Reading,
        progress: Option<&Progress>,
    ) -> PyResult<ReportTuple> {
        let (options, read) = (drawing.options(&self.0)?, reading.options()?);
        let (inputs, progress) = (inputs(paths)?, shared(progress));
        let writing = Writing { copies, as_records };
        let (output, threads) = (output.as_deref(), reading.threads);
        let report = py.detach(|| {
            jobs::augment_files(
                &self.0, options, writing, inputs, read, output, threads, &progress,
            )
        })?;
        Ok(report_tuple(&report))
    }
}

/// Counts files and writes the index (and the matrix) into `dir`; no sentence crosses into Python.
#[pyfunction]
#[pyo3(signature = (paths, dir, words, matrix, reading, progress=None))]
fn build_to(
    py: Python<'_>,
    paths: Vec<Bound<'_, PyAny>>,
    dir: PathBuf,
    words: Words,
    matrix: bool,
    reading: Reading,
    progress: Option<&Progress>,
) -> PyResult<(CountsTuple, Vec<FileTuple>)> {
    let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
    let (inputs, progress) = (inputs(paths)?, shared(progress));
    let threads = reading.threads;
    let stored =
        py.detach(|| jobs::build_to(&dir, inputs, tokenizer, read, matrix, threads, &progress))?;
    Ok(stored_tuple(&stored))
}

/// Counts files into the bytes of an index, be it empty.
#[pyfunction]
fn count(
    py: Python<'_>,
    paths: Vec<Bound<'_, PyAny>>,
    words: Words,
    reading: Reading,
) -> PyResult<Py<PyBytes>> {
    let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
    let (inputs, threads) = (inputs(paths)?, reading.threads);
    let bytes = py.detach(|| {
        let stored = jobs::count(inputs, tokenizer, read, threads, &Default::default())?;
        serialize(&stored)
    })?;
    Ok(PyBytes::new(py, &bytes).unbind())
}

/// Joins the bytes of indexes, in this order, into those of the index of all their files.
#[pyfunction]
fn merge(py: Python<'_>, shards: Vec<Bound<'_, PyBytes>>) -> PyResult<Py<PyBytes>> {
    let shards: Vec<&[u8]> = shards.iter().map(|shard| shard.as_bytes()).collect();
    let bytes = py.detach(|| serialize(&jobs::merge_bytes(&shards)?))?;
    Ok(PyBytes::new(py, &bytes).unbind())
}

/// Writes the bytes of an index into `dir`, and says what it holds.
#[pyfunction]
fn save(py: Python<'_>, dir: PathBuf, bytes: &[u8]) -> PyResult<(CountsTuple, Vec<FileTuple>)> {
    let stored = py.detach(|| jobs::save_bytes(&dir, bytes))?;
    Ok(stored_tuple(&stored))
}

/// The terms of a text: first character, last but one, term.
#[pyfunction]
fn tokenize(text: &Bound<'_, PyString>, words: Words) -> PyResult<Vec<(usize, usize, String)>> {
    let (tokenizer, text) = (words.tokenizer()?, Text::new(text)?);
    Ok(jobs::terms(text.as_str(), tokenizer))
}

/// What `cse doctor` sees, as JSON.
#[pyfunction]
#[pyo3(signature = (paths, words, reading, progress=None))]
fn diagnose(
    py: Python<'_>,
    paths: Vec<Bound<'_, PyAny>>,
    words: Words,
    reading: Reading,
    progress: Option<&Progress>,
) -> PyResult<String> {
    let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
    let (inputs, progress) = (inputs(paths)?, shared(progress));
    let work = || doctor::diagnose(inputs, tokenizer, read, reading.threads, &progress);
    let diagnosis = py.detach(work)?;
    Ok(serde_json::to_string(&diagnosis).expect("numbers and names"))
}

/// The rows of some files, in memory.
#[pyclass(frozen)]
struct Rows(jobs::Rows);

#[pymethods]
impl Rows {
    #[staticmethod]
    #[pyo3(signature = (paths, reading, progress=None))]
    fn read(
        py: Python<'_>,
        paths: Vec<Bound<'_, PyAny>>,
        reading: Reading,
        progress: Option<&Progress>,
    ) -> PyResult<Self> {
        let read = reading.options()?;
        let (inputs, progress) = (inputs(paths)?, shared(progress));
        let rows = py.detach(|| jobs::Rows::read(inputs, read, &progress))?;
        Ok(Rows(rows))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn files(&self) -> Vec<FileTuple> {
        self.0.files.iter().map(file_tuple).collect()
    }

    #[getter]
    fn repaired(&self) -> u64 {
        self.0.repaired
    }

    fn take(&self, rows: Vec<usize>) -> PyResult<Vec<&str>> {
        let found = rows.into_iter().map(|row| {
            let why = || format!("{row} is not below the {} rows of the corpus", self.0.len());
            self.0
                .get(row)
                .ok_or_else(|| Error::invalid("row", why()).into())
        });
        found.collect()
    }

    /// Little-endian u32, one per row.
    fn word_counts<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let counts = py.detach(|| self.0.word_counts());
        PyBytes::new(py, &store::le_bytes(&counts, |x| x.to_le_bytes()))
    }

    /// Little-endian u64, one per row.
    fn hashes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let hashes = py.detach(|| self.0.hashes());
        PyBytes::new(py, &store::le_bytes(&hashes, |x| x.to_le_bytes()))
    }
}

/// 64 random bits for each row, little-endian.
#[pyfunction]
fn random_bits<'py>(
    py: Python<'py>,
    seed: u64,
    epoch: u64,
    rows: Vec<u64>,
    stream: u64,
) -> Bound<'py, PyBytes> {
    let bits = py.detach(|| draw::random_bits(seed, epoch, &rows, stream));
    PyBytes::new(py, &store::le_bytes(&bits, |x| x.to_le_bytes()))
}

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("TOKENIZERS", Tokenizer::NAMES)?;
    m.add("InputError", m.py().get_type::<InputError>())?;
    m.add_class::<Progress>()?;
    m.add_class::<Index>()?;
    m.add_class::<Numbers>()?;
    m.add_class::<Rows>()?;
    m.add_function(wrap_pyfunction!(build_to, m)?)?;
    m.add_function(wrap_pyfunction!(count, m)?)?;
    m.add_function(wrap_pyfunction!(merge, m)?)?;
    m.add_function(wrap_pyfunction!(save, m)?)?;
    m.add_function(wrap_pyfunction!(tokenize, m)?)?;
    m.add_function(wrap_pyfunction!(diagnose, m)?)?;
    m.add_function(wrap_pyfunction!(random_bits, m)?)?;
    Ok(())
}
