//! The class `cse._core.Index`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes};

use crate::VocabularyFilter;
use crate::error::Named;
use crate::index::store::{self, Stored, le_bytes};
use crate::index::{build, matrix};
use crate::py::arguments::{Drawing, Reading, Text, Words};
use crate::py::corpus::{Progress, shared};
use crate::py::numbers::Numbers;
use crate::py::{CountsTuple, counts_tuple};
use crate::text::reader::{FileRecord, Input};
use crate::una::files::{self, Compression, OutputOptions};
use crate::una::options::Report;
use crate::una::radius::default_radius;
use crate::una::texts::{self, Explained, Replaced};

/// An open index.
#[pyclass(frozen)]
pub struct Index(Arc<crate::Index>);

impl Index {
    fn new(stored: Stored, filter: VocabularyFilter) -> PyResult<Self> {
        Ok(Index(Arc::new(stored.into_index(filter)?)))
    }
}

#[pymethods]
impl Index {
    /// Opens the index in the folder `dir`.
    #[staticmethod]
    fn open(py: Python<'_>, dir: PathBuf, min_df: u64, max_terms: Option<usize>) -> PyResult<Self> {
        let filter = VocabularyFilter { min_df, max_terms };
        Ok(Index(Arc::new(py.detach(|| store::open(&dir, filter))?)))
    }

    /// Builds an index from files.
    #[staticmethod]
    #[pyo3(signature = (paths, words, reading, progress=None))]
    fn build(
        py: Python<'_>,
        paths: Vec<Input>,
        words: Words,
        reading: Reading,
        progress: Option<&Progress>,
    ) -> PyResult<Self> {
        let (tokenizer, read) = (words.tokenizer()?, reading.options()?);
        let progress = shared(progress);
        let work = || build::build(paths, tokenizer, read, reading.threads, &progress);
        Index::new(py.detach(work)?, VocabularyFilter::default())
    }

    /// Builds an index from texts in memory.
    #[staticmethod]
    fn from_texts(
        py: Python<'_>,
        texts: Vec<Text>,
        words: Words,
        min_df: u64,
        max_terms: Option<usize>,
    ) -> PyResult<Self> {
        let tokenizer = words.tokenizer()?;
        let work = || build::build_from_texts(texts.iter().map(Text::as_str), tokenizer);
        Index::new(py.detach(work)?, VocabularyFilter { min_df, max_terms })
    }

    /// Merges the indexes in the folders `shards`, writes the result into `dir`, and opens it.
    #[staticmethod]
    fn merge_to(py: Python<'_>, dir: PathBuf, shards: Vec<PathBuf>) -> PyResult<Self> {
        let merged = py.detach(|| build::merge_to(&dir, &shards))?;
        Index::new(merged, VocabularyFilter::default())
    }

    /// Opens an index from the bytes that `to_bytes` returned.
    #[staticmethod]
    fn from_bytes(py: Python<'_>, bytes: &[u8], min_df: u64, max_terms: Option<usize>) -> PyResult<Self> {
        let stored = py.detach(|| store::deserialize(bytes, Path::new("bytes")))?;
        Index::new(stored, VocabularyFilter { min_df, max_terms })
    }

    /// Returns the bytes that `save` writes.
    fn to_bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &py.detach(|| self.0.to_bytes())?))
    }

    /// Writes the index into the folder `dir`.
    fn save(&self, py: Python<'_>, dir: PathBuf) -> PyResult<()> {
        let save = || store::save_bytes(&dir, &self.0.to_bytes()?);
        Ok(py.detach(save)?)
    }

    /// Returns the TF-IDF matrix of texts in CSR format: indptr and indices (little-endian i64) and values (f64), as
    /// bytes that the caller may modify.
    fn transform<'py>(&self, py: Python<'py>, texts: Vec<Text>) -> PyResult<[Bound<'py, PyByteArray>; 3]> {
        let csr = py.detach(|| matrix::transform(&self.0, texts.iter().map(Text::as_str)));
        Ok([
            PyByteArray::new(py, &le_bytes(&csr.indptr, |x| x.to_le_bytes())),
            PyByteArray::new(py, &le_bytes(&csr.indices, |x| x.to_le_bytes())),
            PyByteArray::new(py, &le_bytes(&csr.values, |x| x.to_le_bytes())),
        ])
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Returns the name of the tokenizer, whether it converts to lower case, and whether it applies NFKC.
    #[getter]
    fn tokenizer(&self) -> (&'static str, bool, bool) {
        let tokenizer = self.0.tokenizer;
        (tokenizer.name(), tokenizer.lowercase, tokenizer.nfkc)
    }

    /// Returns the hash of the model's tokenizer whose pieces are the terms; zeros for other terms.
    #[getter]
    fn pieces(&self) -> String {
        self.0.tokenizer.hex()
    }

    #[getter]
    fn counts(&self) -> CountsTuple {
        counts_tuple(&self.0.stats)
    }

    #[getter]
    fn files(&self) -> Vec<FileRecord> {
        self.0.files.clone()
    }

    #[getter]
    fn default_radius(&self) -> usize {
        default_radius(&self.0)
    }

    fn terms(&self) -> Vec<&str> {
        (0..self.0.len()).map(|t| self.0.term(t)).collect()
    }

    /// Returns the array with this name: `df`, `idf`, `max_score` or `by_rank`.
    fn numbers(&self, name: String) -> Numbers {
        let index = self.0.clone();
        Numbers { index, name }
    }

    /// Returns one synthetic sentence per text, and a report.
    fn augment(
        &self,
        py: Python<'_>,
        texts: Vec<Text>,
        rows: Vec<u64>,
        drawing: Drawing,
    ) -> PyResult<(Vec<String>, Report)> {
        let options = drawing.options(&self.0)?;
        let (outputs, mut report) = py.detach(|| {
            let texts = texts.iter().map(Text::as_str);
            texts::augment_texts(&self.0, options, texts.zip(rows))
        });
        report.repaired = Text::repaired(&texts);
        Ok((outputs, report))
    }

    /// Returns the synthetic sentence and, for each replaced word: old word, new word, span in the text, span in the
    /// synthetic sentence, replacement probability, old rank and new rank.
    fn replacements(&self, text: Text, row: u64, drawing: Drawing) -> PyResult<(String, Vec<Replaced>)> {
        let options = drawing.options(&self.0)?;
        Ok(texts::replacements(&self.0, options, text.as_str(), row))
    }

    /// Returns, for each word of the text: the word as written, whether it is in the index, its document frequency,
    /// TF-IDF score, replacement probability and rank (from 1), sampled replacements, and whether it can be replaced.
    fn explain(&self, text: Text, samples: usize, drawing: Drawing) -> PyResult<Vec<Explained>> {
        let options = drawing.options(&self.0)?;
        Ok(texts::explain(&self.0, options, text.as_str(), samples))
    }

    /// Writes synthetic sentences for the rows of files to `output`, or to standard output if `output` is `None`, and
    /// returns a report and the records of the files that were read. `part` is given for one part of a corpus, which may
    /// be empty: the compression of the output (`gz`, `zst` or `none`), and the number of its first row in the corpus.
    #[pyo3(signature = (paths, output, copies, as_records, drawing, reading, progress=None, part=None))]
    #[allow(clippy::too_many_arguments)]
    fn augment_files(
        &self,
        py: Python<'_>,
        paths: Vec<Input>,
        output: Option<PathBuf>,
        copies: u64,
        as_records: bool,
        drawing: Drawing,
        reading: Reading,
        progress: Option<&Progress>,
        part: Option<(String, u64)>,
    ) -> PyResult<(Report, Vec<FileRecord>)> {
        let (options, read) = (drawing.options(&self.0)?, reading.options()?);
        let progress = shared(progress);
        let (compression, first_row) = match part {
            Some((compression, first_row)) => (Compression::from_name(&compression)?, Some(first_row)),
            None => (Compression::None, None),
        };
        let writing = OutputOptions { copies, as_records, compression, first_row };
        let (output, threads) = (output.as_deref(), reading.threads);
        let work = || files::augment_files(&self.0, options, writing, paths, read, output, threads, &progress);
        Ok(py.detach(work)?)
    }
}
