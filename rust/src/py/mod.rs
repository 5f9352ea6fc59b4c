//! The Python module `cse._core`. All code that uses PyO3 is in this module and its submodules.

use std::path::PathBuf;

use pyo3::buffer::PyBuffer;
use pyo3::create_exception;
use pyo3::exceptions::{PyFileNotFoundError, PyIsADirectoryError, PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::error::Named;
use crate::index::build;
use crate::index::stats::{Counts, Stats};
use crate::random;
use crate::text::reader::{self, FileRecord, Input};
use crate::text::tokenize::Rule;
use crate::{Error, checksum, doctor, text};

mod arguments;
mod corpus;
mod index;
mod numbers;

use arguments::{Reading, Text, Words};
use corpus::{Progress, Rows, collapsed, is_blank, row_keys, shared, write_rows};

create_exception!(
    cse,
    InputError,
    PyValueError,
    "An argument or an input file is not valid. The message says what is wrong, where, and what to do."
);

impl From<Error> for PyErr {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::NotFound { .. } | Error::NoFolder { .. } => PyFileNotFoundError::new_err(message),
            Error::IsDirectory { .. } => PyIsADirectoryError::new_err(message),
            Error::Io { source, path } => match source.raw_os_error() {
                Some(code) => PyOSError::new_err((code, source.to_string(), path)),
                // An exception raised by a decoder in Python is passed on unchanged.
                None => source.downcast::<PyErr>().unwrap_or_else(|_| PyOSError::new_err(message)),
            },
            Error::Interrupted => PyKeyboardInterrupt::new_err(()),
            _ => InputError::new_err(message),
        }
    }
}

/// Counts of a corpus: (documents, rows, blank, wordless, tokens, repaired, terms).
type CountsTuple = (u64, u64, u64, u64, u64, u64, usize);

fn counts_tuple(stats: &Stats) -> CountsTuple {
    let Counts { documents, rows, blank, wordless, tokens, repaired } = stats.counts;
    (documents, rows, blank, wordless, tokens, repaired, stats.terms.len())
}

/// Counts the terms of files and writes the index into `dir`; writes the matrix too if `matrix` is true.
#[pyfunction]
#[pyo3(signature = (paths, dir, words, matrix, reading, progress=None))]
fn build_to(
    py: Python<'_>,
    paths: Vec<Input>,
    dir: PathBuf,
    words: Words,
    matrix: bool,
    reading: Reading,
    progress: Option<&Progress>,
) -> PyResult<(CountsTuple, Vec<FileRecord>)> {
    let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
    let progress = shared(progress);
    let threads = reading.threads;
    let work = || build::build_to(&dir, paths, tokenizer, read, matrix, threads, &progress);
    let stored = py.detach(work)?;
    Ok((counts_tuple(&stored.stats), stored.files))
}

/// Counts the terms of files and returns the index as bytes. The index may be empty.
#[pyfunction]
fn count(py: Python<'_>, paths: Vec<Input>, words: Words, reading: Reading) -> PyResult<Py<PyBytes>> {
    let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
    let threads = reading.threads;
    let work = || build::count(paths, tokenizer, read, threads, &Default::default())?.to_bytes();
    Ok(PyBytes::new(py, &py.detach(work)?).unbind())
}

/// Returns the records of the files, which include the numbers of rows. A corpus without rows is accepted.
#[pyfunction]
#[pyo3(signature = (paths, reading, progress=None))]
fn count_rows(
    py: Python<'_>,
    paths: Vec<Input>,
    reading: Reading,
    progress: Option<&Progress>,
) -> PyResult<Vec<FileRecord>> {
    let (read, progress) = (reading.options()?, shared(progress));
    Ok(py.detach(|| reader::count_rows(paths, read, &progress))?)
}

/// Merges indexes given as bytes, in the given order, and returns the index of all their files as bytes.
#[pyfunction]
fn merge(py: Python<'_>, shards: Vec<Bound<'_, PyBytes>>) -> PyResult<Py<PyBytes>> {
    let shards: Vec<&[u8]> = shards.iter().map(|shard| shard.as_bytes()).collect();
    let bytes = py.detach(|| build::merge_bytes(&shards)?.to_bytes())?;
    Ok(PyBytes::new(py, &bytes).unbind())
}

/// Writes an index given as bytes into `dir` and returns its counts and files.
#[pyfunction]
fn save(py: Python<'_>, dir: PathBuf, bytes: &[u8]) -> PyResult<(CountsTuple, Vec<FileRecord>)> {
    let stored = py.detach(|| build::save_bytes(&dir, bytes))?;
    Ok((counts_tuple(&stored.stats), stored.files))
}

/// Returns (start, end, term) for each term of a text. `start` and `end` are character offsets; `end` is exclusive.
#[pyfunction]
fn tokenize(text: Text, words: Words) -> PyResult<Vec<(usize, usize, String)>> {
    let tokenizer = words.tokenizer()?;
    Ok(text::tokenize::terms(text.as_str(), tokenizer))
}

/// Returns the diagnosis of a corpus as JSON.
#[pyfunction]
#[pyo3(signature = (paths, words, reading, progress=None))]
fn diagnose(
    py: Python<'_>,
    paths: Vec<Input>,
    words: Words,
    reading: Reading,
    progress: Option<&Progress>,
) -> PyResult<String> {
    let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
    let progress = shared(progress);
    let work = || doctor::diagnose(paths, tokenizer, read, reading.threads, &progress);
    Ok(py.detach(work)?.to_json())
}

/// Sets the default number of threads, which is used by calls that ask for 0 threads.
#[pyfunction]
fn set_default_threads(threads: usize) -> PyResult<()> {
    Ok(crate::parallel::set_default_threads(threads)?)
}

/// Returns 64 random bits for each row, as eight bytes in little-endian order. `rows` is an array, because converting a
/// list of Python integers would take longer than computing the bits.
#[pyfunction]
fn random_bits<'py>(
    py: Python<'py>,
    seed: u64,
    epoch: u64,
    rows: PyBuffer<u64>,
    stream: u64,
) -> PyResult<Bound<'py, PyBytes>> {
    let rows = rows.to_vec(py)?;
    let bits = py.detach(|| random::random_bits(seed, epoch, &rows, stream));
    PyBytes::new_with(py, 8 * bits.len(), |bytes| {
        for (bytes, bits) in bytes.as_chunks_mut().0.iter_mut().zip(&bits) {
            *bytes = bits.to_le_bytes();
        }
        Ok(())
    })
}

/// Returns a dropout mask of `count` numbers: `kept`, the bytes of a number, or 0 with probability `dropped` / 2^16.
#[pyfunction]
fn dropout_mask<'py>(
    py: Python<'py>,
    seed: u64,
    dropped: u32,
    kept: &[u8],
    count: usize,
) -> PyResult<Bound<'py, PyByteArray>> {
    let size = count.saturating_mul(kept.len());
    match kept.len() {
        2 => masked::<2>(py, seed, dropped, kept, size),
        4 => masked::<4>(py, seed, dropped, kept, size),
        8 => masked::<8>(py, seed, dropped, kept, size),
        other => Err(PyValueError::new_err(format!("a number of {other} bytes"))),
    }
}

fn masked<'py, const N: usize>(
    py: Python<'py>,
    seed: u64,
    dropped: u32,
    kept: &[u8],
    size: usize,
) -> PyResult<Bound<'py, PyByteArray>> {
    let kept: [u8; N] = kept.try_into()?;
    PyByteArray::new_with(py, size, |bytes| {
        random::dropout_mask(seed, dropped, kept, bytes.as_chunks_mut().0);
        Ok(())
    })
}

/// Returns the XXH3-128 checksum of the contents of a file, as 32 hexadecimal digits.
#[pyfunction]
fn hash_file(py: Python<'_>, path: PathBuf) -> PyResult<String> {
    Ok(py.detach(|| checksum::hash_file(&path))?)
}

/// Returns the XXH3-128 checksum of bytes, as 32 hexadecimal digits.
#[pyfunction]
fn hash_bytes(bytes: &[u8]) -> String {
    checksum::hash_bytes(bytes)
}

/// From now on, a file that is truncated while it is mapped into memory ends the process with a message and exit code
/// 2, instead of a bus error without a message.
#[pyfunction]
fn report_truncated_files() {
    extern "C" fn report(_signal: libc::c_int) {
        let text = b"Error: another program truncated a file while cse was reading it; restore the file, and run the \
            command again\n";
        // SAFETY: both functions may be called in a signal handler, and `text` is valid for its length.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(2);
        }
    }
    let handler: extern "C" fn(libc::c_int) = report;
    // SAFETY: the handler calls only functions that are safe in a signal handler.
    unsafe { libc::signal(libc::SIGBUS, handler as libc::sighandler_t) };
}

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("TOKENIZERS", Rule::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>())?;
    m.add("InputError", m.py().get_type::<InputError>())?;
    m.add_class::<Progress>()?;
    m.add_class::<index::Index>()?;
    m.add_class::<numbers::Numbers>()?;
    m.add_class::<Rows>()?;
    m.add_function(wrap_pyfunction!(build_to, m)?)?;
    m.add_function(wrap_pyfunction!(count, m)?)?;
    m.add_function(wrap_pyfunction!(count_rows, m)?)?;
    m.add_function(wrap_pyfunction!(merge, m)?)?;
    m.add_function(wrap_pyfunction!(save, m)?)?;
    m.add_function(wrap_pyfunction!(tokenize, m)?)?;
    m.add_function(wrap_pyfunction!(diagnose, m)?)?;
    m.add_function(wrap_pyfunction!(set_default_threads, m)?)?;
    m.add_function(wrap_pyfunction!(random_bits, m)?)?;
    m.add_function(wrap_pyfunction!(dropout_mask, m)?)?;
    m.add_function(wrap_pyfunction!(collapsed, m)?)?;
    m.add_function(wrap_pyfunction!(is_blank, m)?)?;
    m.add_function(wrap_pyfunction!(row_keys, m)?)?;
    m.add_function(wrap_pyfunction!(write_rows, m)?)?;
    m.add_function(wrap_pyfunction!(hash_file, m)?)?;
    m.add_function(wrap_pyfunction!(hash_bytes, m)?)?;
    m.add_function(wrap_pyfunction!(report_truncated_files, m)?)?;
    Ok(())
}
