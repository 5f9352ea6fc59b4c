//! The Python module `cse._core`: everything that touches PyO3, and nothing else.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::create_exception;
use pyo3::exceptions::{
    PyFileNotFoundError, PyIsADirectoryError, PyKeyboardInterrupt, PyOSError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::augment::{Options, Report};
use crate::corpus::{self, EncodingErrors, FileRecord, ReadOptions};
use crate::stats::Counts;
use crate::{Error, draw, jobs, store, tokenize};

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
                None => PyOSError::new_err(message),
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

fn read_options(encoding_errors: &str, max_line_bytes: usize) -> PyResult<ReadOptions> {
    let encoding_errors = match encoding_errors {
        "strict" => EncodingErrors::Strict,
        "replace" => EncodingErrors::Replace,
        other => {
            let why = format!("{other:?} is unknown; choose strict or replace");
            return Err(Error::invalid("--encoding-errors", why).into());
        }
    };
    Ok(ReadOptions {
        encoding_errors,
        max_line_bytes,
    })
}

/// A Python string as UTF-8, and whether lone surrogates had to become U+FFFD, one for one.
fn utf8(text: &Bound<'_, PyString>) -> PyResult<(String, bool)> {
    if let Ok(text) = text.to_str() {
        return Ok((text.to_owned(), false));
    }
    let wide = text.call_method1("encode", ("utf-16-le", "surrogatepass"))?;
    let units: Vec<u16> = wide
        .cast::<PyBytes>()?
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        .collect();
    Ok((String::from_utf16_lossy(&units), true))
}

fn all_utf8(texts: &[Bound<'_, PyString>]) -> PyResult<Vec<(String, bool)>> {
    texts.iter().map(utf8).collect()
}

type FileTuple = (String, u64, u64, String);

fn file_tuple(file: &FileRecord) -> FileTuple {
    (file.path.clone(), file.bytes, file.rows, file.xxh3.clone())
}

/// documents, rows, blank, wordless, tokens, repaired, terms
type CountsTuple = (u64, u64, u64, u64, u64, u64, usize);

fn counts_tuple(counts: &Counts, terms: usize) -> CountsTuple {
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

/// rows, blank, unchanged, words, unseen, replaced, repaired
type ReportTuple = (u64, u64, u64, u64, u64, u64, u64);

fn report_tuple(report: &Report) -> ReportTuple {
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

#[pyclass(frozen)]
struct Index(crate::Index);

#[pymethods]
impl Index {
    #[staticmethod]
    fn open(py: Python<'_>, dir: PathBuf) -> PyResult<Self> {
        Ok(Index(py.detach(|| store::open(&dir))?))
    }

    #[staticmethod]
    #[pyo3(signature = (paths, tokenizer, encoding_errors, max_line_bytes, threads, progress=None))]
    fn build(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        tokenizer: &str,
        encoding_errors: &str,
        max_line_bytes: usize,
        threads: usize,
        progress: Option<&Progress>,
    ) -> PyResult<Self> {
        let tokenizer = tokenize::Tokenizer::from_name(tokenizer)?;
        let (read, progress) = (
            read_options(encoding_errors, max_line_bytes)?,
            shared(progress),
        );
        let (stats, files) =
            py.detach(|| jobs::build(&paths, tokenizer, read, threads, &progress))?;
        Ok(Index(crate::Index::new(tokenizer, files, stats)))
    }

    /// Writes the index of several folders' corpora together into `dir`, and opens it.
    #[staticmethod]
    fn merge_to(py: Python<'_>, dir: PathBuf, shards: Vec<PathBuf>) -> PyResult<Self> {
        Ok(Index(py.detach(|| jobs::merge_to(&dir, &shards))?))
    }

    /// indptr and indices (little-endian i64) and values (f64) of a CSR matrix.
    fn transform<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Bound<'py, PyString>>,
    ) -> PyResult<[Bound<'py, PyBytes>; 3]> {
        let texts = all_utf8(&texts)?;
        let csr = py.detach(|| jobs::transform(&self.0, &texts));
        Ok([
            PyBytes::new(py, &store::le_bytes(&csr.indptr, |x| x.to_le_bytes())),
            PyBytes::new(py, &store::le_bytes(&csr.indices, |x| x.to_le_bytes())),
            PyBytes::new(py, &store::le_bytes(&csr.values, |x| x.to_le_bytes())),
        ])
    }

    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        let index = &self.0;
        Ok(py.detach(|| store::save(&dir, index.tokenizer, &index.files, &index.stats, None))?)
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn tokenizer(&self) -> &'static str {
        self.0.tokenizer.name()
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

    /// Little-endian u32.
    fn by_rank<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &store::le_bytes(&self.0.by_rank, |x| x.to_le_bytes()))
    }

    /// Little-endian u64.
    fn df<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &store::le_bytes(&self.0.stats.df, |x| x.to_le_bytes()))
    }

    /// Little-endian f64.
    fn idf<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &store::le_bytes(&self.0.idf, |x| x.to_le_bytes()))
    }

    /// Little-endian f64.
    fn max_score<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &store::le_bytes(&self.0.max_score, |x| x.to_le_bytes()))
    }

    #[pyo3(signature = (texts, rows, seed, epoch, copy, beta, radius, surface))]
    #[allow(clippy::too_many_arguments)]
    fn augment(
        &self,
        py: Python<'_>,
        texts: Vec<Bound<'_, PyString>>,
        rows: Vec<u64>,
        seed: u64,
        epoch: u64,
        copy: u64,
        beta: f64,
        radius: Option<usize>,
        surface: &str,
    ) -> PyResult<(Vec<String>, ReportTuple)> {
        let options = Options::new(&self.0, beta, radius, surface)?;
        let options = Options {
            seed,
            epoch,
            copy,
            ..options
        };
        let texts = all_utf8(&texts)?;
        let (texts, report) = py.detach(|| jobs::augment_texts(&self.0, options, &texts, &rows));
        Ok((texts, report_tuple(&report)))
    }

    /// The negative, and for each replaced word its characters in the input and in the output, and its p.
    #[pyo3(signature = (text, row, seed, epoch, copy, beta, radius, surface))]
    #[allow(clippy::too_many_arguments, clippy::type_complexity)]
    fn replacements(
        &self,
        text: &Bound<'_, PyString>,
        row: u64,
        seed: u64,
        epoch: u64,
        copy: u64,
        beta: f64,
        radius: Option<usize>,
        surface: &str,
    ) -> PyResult<(String, Vec<((usize, usize), (usize, usize), f64)>)> {
        let options = Options::new(&self.0, beta, radius, surface)?;
        let options = Options {
            seed,
            epoch,
            copy,
            ..options
        };
        Ok(jobs::replacements(&self.0, options, &utf8(text)?.0, row))
    }

    /// For each word: surface, seen, document frequency, tf-idf, p, rank from 1, samples.
    #[pyo3(signature = (text, seed, samples, beta, radius))]
    fn explain(
        &self,
        text: &Bound<'_, PyString>,
        seed: u64,
        samples: usize,
        beta: f64,
        radius: Option<usize>,
    ) -> PyResult<Vec<jobs::Explained>> {
        let options = Options::new(&self.0, beta, radius, "keep")?;
        let options = Options { seed, ..options };
        Ok(jobs::explain(&self.0, options, &utf8(text)?.0, samples))
    }

    #[pyo3(signature = (paths, output, seed, epoch, copy, beta, radius, surface, encoding_errors, max_line_bytes, threads, progress=None))]
    #[allow(clippy::too_many_arguments)]
    fn augment_files(
        &self,
        py: Python<'_>,
        paths: Vec<PathBuf>,
        output: Option<PathBuf>,
        seed: u64,
        epoch: u64,
        copy: u64,
        beta: f64,
        radius: Option<usize>,
        surface: &str,
        encoding_errors: &str,
        max_line_bytes: usize,
        threads: usize,
        progress: Option<&Progress>,
    ) -> PyResult<ReportTuple> {
        let options = Options::new(&self.0, beta, radius, surface)?;
        let options = Options {
            seed,
            epoch,
            copy,
            ..options
        };
        let (read, progress) = (
            read_options(encoding_errors, max_line_bytes)?,
            shared(progress),
        );
        let output = output.as_deref();
        let report = py.detach(|| {
            jobs::augment_files(&self.0, options, &paths, read, output, threads, &progress)
        })?;
        Ok(report_tuple(&report))
    }
}

/// Counts files and writes the index (and the matrix) into `dir`; no sentence crosses into Python.
#[pyfunction]
#[pyo3(signature = (paths, dir, tokenizer, matrix, encoding_errors, max_line_bytes, threads, progress=None))]
#[allow(clippy::too_many_arguments)]
fn build_to(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    dir: PathBuf,
    tokenizer: &str,
    matrix: bool,
    encoding_errors: &str,
    max_line_bytes: usize,
    threads: usize,
    progress: Option<&Progress>,
) -> PyResult<(CountsTuple, Vec<FileTuple>)> {
    let tokenizer = tokenize::Tokenizer::from_name(tokenizer)?;
    let (read, progress) = (
        read_options(encoding_errors, max_line_bytes)?,
        shared(progress),
    );
    let (stats, files) =
        py.detach(|| jobs::build_to(&dir, &paths, tokenizer, read, matrix, threads, &progress))?;
    let files = files.iter().map(file_tuple).collect();
    Ok((counts_tuple(&stats.counts, stats.terms.len()), files))
}

/// The rows of some files, in memory.
#[pyclass(frozen)]
struct Rows(jobs::Rows);

#[pymethods]
impl Rows {
    #[staticmethod]
    #[pyo3(signature = (paths, encoding_errors, max_line_bytes, progress=None))]
    fn read(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        encoding_errors: &str,
        max_line_bytes: usize,
        progress: Option<&Progress>,
    ) -> PyResult<Self> {
        let (read, progress) = (
            read_options(encoding_errors, max_line_bytes)?,
            shared(progress),
        );
        Ok(Rows(
            py.detach(|| jobs::Rows::read(&paths, read, &progress))?,
        ))
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
    m.add("TOKENIZERS", tokenize::Tokenizer::NAMES)?;
    m.add("InputError", m.py().get_type::<InputError>())?;
    m.add_class::<Progress>()?;
    m.add_class::<Index>()?;
    m.add_class::<Rows>()?;
    m.add_function(wrap_pyfunction!(build_to, m)?)?;
    m.add_function(wrap_pyfunction!(random_bits, m)?)?;
    Ok(())
}
