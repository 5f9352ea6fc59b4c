//! Reads a corpus for Python: the classes `Progress` and `Rows`, and the function `write_rows`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::index::store::le_bytes;
use crate::py::arguments::{Reading, Text};
use crate::text::reader::{FileRecord, Input};
use crate::text::{row, rows};
use crate::{Error, progress};

/// Progress of a call, in bytes read. `cancel()` stops the call.
#[pyclass(frozen)]
#[derive(Default)]
pub struct Progress(Arc<progress::Progress>);

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

/// Returns the core's progress object that `progress` wraps, or a new one if Python passed `None`.
pub fn shared(progress: Option<&Progress>) -> Arc<progress::Progress> {
    progress.map(|p| p.0.clone()).unwrap_or_default()
}

/// The rows of some files, in memory.
#[pyclass(frozen)]
pub struct Rows(rows::Rows);

#[pymethods]
impl Rows {
    #[staticmethod]
    #[pyo3(signature = (paths, reading, progress=None))]
    fn read(py: Python<'_>, paths: Vec<Input>, reading: Reading, progress: Option<&Progress>) -> PyResult<Self> {
        let (read, progress) = (reading.options()?, shared(progress));
        Ok(Rows(py.detach(|| rows::Rows::read(paths, read, &progress))?))
    }

    /// Returns `None` if the rows take more than `most` bytes.
    #[staticmethod]
    fn read_up_to(py: Python<'_>, paths: Vec<Input>, reading: Reading, most: usize) -> PyResult<Option<Self>> {
        let (read, progress) = (reading.options()?, shared(None));
        Ok(py.detach(|| rows::Rows::read_up_to(paths, read, most, &progress))?.map(Rows))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    #[getter]
    fn files(&self) -> Vec<FileRecord> {
        self.0.files.clone()
    }

    #[getter]
    fn repaired(&self) -> u64 {
        self.0.repaired
    }

    fn take(&self, rows: Vec<usize>) -> PyResult<Vec<&str>> {
        let found = rows.into_iter().map(|row| {
            let why = || format!("{row} is out of range; there are {} rows", self.0.len());
            self.0.get(row).ok_or_else(|| Error::invalid("row", why()).into())
        });
        found.collect()
    }

    /// Returns the number of words in each row, as the bytes of little-endian u32 numbers.
    fn word_counts<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let counts = py.detach(|| self.0.word_counts());
        PyBytes::new(py, &le_bytes(&counts, |x| x.to_le_bytes()))
    }

    /// Returns the XXH3 hash of each row, as the bytes of little-endian u64 numbers.
    fn hashes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let hashes = py.detach(|| self.0.hashes());
        PyBytes::new(py, &le_bytes(&hashes, |x| x.to_le_bytes()))
    }

    /// Returns the key of each row, as the bytes of little-endian u64 numbers; see `row_keys`.
    fn keys<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        let keys = py.detach(|| self.0.keys());
        PyBytes::new(py, &le_bytes(&keys, |x| x.to_le_bytes()))
    }
}

/// Returns the key of each text, as the bytes of little-endian u64 numbers. Texts that differ only in letter case, white
/// space, Unicode composition and characters that nobody sees have equal keys.
#[pyfunction]
pub fn row_keys<'py>(py: Python<'py>, texts: Vec<Text>) -> Bound<'py, PyBytes> {
    let keys = row::row_keys(texts.iter().map(Text::as_str));
    PyBytes::new(py, &le_bytes(&keys, |x| x.to_le_bytes()))
}

/// Returns a text without characters that nobody sees, with a space for each run of white space, and none at both ends.
#[pyfunction]
pub fn collapsed(text: Text) -> String {
    row::collapsed(text.as_str())
}

/// Whether a text contains only white space and characters that nobody sees.
#[pyfunction]
pub fn is_blank(text: Text) -> bool {
    row::is_blank(text.as_str())
}

/// Writes the rows of files into a folder. Returns the number of rows, the file records, and the number of rows in
/// which invalid bytes were replaced.
#[pyfunction]
#[pyo3(signature = (paths, dir, reading, progress=None))]
pub fn write_rows(
    py: Python<'_>,
    paths: Vec<Input>,
    dir: PathBuf,
    reading: Reading,
    progress: Option<&Progress>,
) -> PyResult<(u64, Vec<FileRecord>, u64)> {
    let (read, progress) = (reading.options()?, shared(progress));
    Ok(py.detach(|| rows::write(paths, read, &dir, &progress))?)
}
