//! The index on disk: one safetensors file with the sufficient statistics, and optionally the matrix.
//!
//! `DIR/index.safetensors` contains the tensors `terms` (bytes end to end), `offsets`, `df` and `max_tf` (the maximum
//! of c/L, where c is the count of the term in a sentence of L words). Its metadata has a single key, `cse`, whose
//! value is canonical JSON (sorted keys), because safetensors writes several keys in random order. `DIR/matrix.npz` is
//! optional, and names the checksum of the index file. Files are written under a temporary name and then renamed; a
//! full disk therefore leaves the old files intact, and a killed process leaves an old or a new index, without a matrix
//! of another index. A checksum over metadata and tensors detects a damaged file.

use std::collections::HashMap;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata, TensorView};
use serde_json::{Value, json};
use xxhash_rust::xxh3::Xxh3;

use crate::checksum::hash_bytes;
use crate::error::{Error, Result};
use crate::index::stats::{Counts, Part, Stats, Terms};
use crate::index::{Index, VocabularyFilter, matrix};
use crate::output::PendingFile;
use crate::parallel::in_pool;
use crate::progress::Progress;
use crate::text::reader::FileRecord;
use crate::text::tokenize::{Rule, Tokenizer};

/// Version of the file format.
pub const FORMAT: u32 = 1;
const KEY: &str = "cse";
const FORMULA: &str = "ln(1 + c/L) * ln(N/df)";
/// Names of the tensors, in their order in the file: first the tensors of eight-byte numbers, then the tensor of bytes.
const NAMES: [&str; 4] = ["df", "max_tf", "offsets", "terms"];

/// Returns the path of the index file in the folder `dir`.
pub fn index_path(dir: &Path) -> PathBuf {
    dir.join("index.safetensors")
}

/// Returns the path of the matrix in the folder `dir`.
pub fn matrix_path(dir: &Path) -> PathBuf {
    dir.join("matrix.npz")
}

/// The content of an index file.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub tokenizer: Tokenizer,
    pub files: Vec<FileRecord>,
    pub stats: Stats,
}

impl Index {
    /// Returns the bytes of the index file, or an error if the index was opened with a filter.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        if !self.is_whole() {
            return Err(Error::IsFiltered);
        }
        serialize(self.tokenizer, &self.files, &self.stats)
    }
}

impl Stored {
    /// Returns the index of the two corpora combined. Both indexes must have the same tokenizer. Error messages refer
    /// to `other` as `name`.
    pub fn merge(self, other: Stored, name: &str) -> Result<Stored> {
        if self.tokenizer != other.tokenizer {
            return Err(Error::TokenizersDiffer {
                name: name.into(),
                found: other.tokenizer.describe(),
                wanted: self.tokenizer.describe(),
            });
        }
        Ok(Stored {
            tokenizer: self.tokenizer,
            stats: self.stats.merge(&other.stats),
            files: [self.files, other.files].concat(),
        })
    }

    /// Returns the bytes of the index file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        serialize(self.tokenizer, &self.files, &self.stats)
    }

    /// Opens the index with only the terms that `filter` keeps.
    pub fn into_index(self, filter: VocabularyFilter) -> Result<Index> {
        Index::with_filter(self.tokenizer, self.files, self.stats, filter)
    }
}

/// Writes `DIR/index.safetensors` and, if `parts` are given, `DIR/matrix.npz`. Without `parts`, the matrix of an older
/// index is removed. Both files are complete before either is renamed to its final name. If the call is cancelled, the
/// existing files are left unchanged.
pub fn save(dir: &Path, stored: &Stored, parts: Option<Vec<Part>>, progress: &Progress) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    let bytes = stored.to_bytes()?;
    progress.check()?;
    let write = |parts| {
        PendingFile::write(&matrix_path(dir), |file| {
            matrix::write_npz(file, &hash_bytes(&bytes), &stored.stats, parts, progress)
        })
    };
    let matrix = parts.map(write).transpose();
    progress.check()?;
    put(dir, &bytes, matrix?)
}

/// Writes the bytes of an index file, as returned by [`serialize`], to the folder `dir`, and removes the matrix of an
/// older index.
pub fn save_bytes(dir: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    put(dir, bytes, None)
}

fn put(dir: &Path, bytes: &[u8], matrix: Option<PendingFile>) -> Result<()> {
    let index = PendingFile::write(&index_path(dir), |file| file.write_all(bytes))?;
    // The old matrix is removed first, so that there is no moment at which it stands beside the new index.
    let path = matrix_path(dir);
    match std::fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(Error::io(&path, e)),
        _ => {}
    }
    index.commit()?;
    matrix.map_or(Ok(()), PendingFile::commit)
}

/// Returns the bytes of the index file, which depend only on the arguments.
pub fn serialize(tokenizer: Tokenizer, files: &[FileRecord], stats: &Stats) -> Result<Vec<u8>> {
    let counts = &stats.counts;
    let mut meta = json!({
        "format": FORMAT,
        "formula": FORMULA,
        "tokenizer": { "name": tokenizer.name(), "lowercase": tokenizer.lowercase, "nfkc": tokenizer.nfkc },
        "documents": counts.documents,
        "rows": counts.rows,
        "blank": counts.blank,
        "wordless": counts.wordless,
        "tokens": counts.tokens,
        "repaired": counts.repaired,
        "files": files,
    });
    if tokenizer.rule == Rule::Wordpieces {
        meta["tokenizer"]["pieces"] = tokenizer.hex().into();
    }
    let df = le_bytes(&stats.df, |x| x.to_le_bytes());
    let max_frequency = le_bytes(&stats.max_frequency, |x| x.to_le_bytes());
    let offsets = le_bytes(&stats.terms.offsets, |x| x.to_le_bytes());
    let data: [(Dtype, &[u8]); 4] =
        [(Dtype::U64, &df), (Dtype::F64, &max_frequency), (Dtype::U64, &offsets), (Dtype::U8, &stats.terms.bytes)];
    meta["checksum"] = checksum(&meta, data.map(|(_, bytes)| bytes)).into();
    let views = NAMES.iter().zip(data).map(|(name, (dtype, bytes))| {
        let shape = vec![bytes.len() * 8 / dtype.bitsize()];
        let view = TensorView::new(dtype, shape, bytes).expect("the shape is the length");
        (*name, view)
    });
    let metadata = HashMap::from([(KEY.to_string(), meta.to_string())]);
    safetensors::serialize(views, Some(metadata))
        .map_err(|e| Error::invalid("index", format!("cannot be written: {e}")))
}

/// Returns the XXH3 checksum of the canonical JSON (without the checksum itself) and of the length and bytes of each
/// tensor.
fn checksum(meta: &Value, tensors: [&[u8]; 4]) -> String {
    let mut hasher = Xxh3::new();
    hasher.update(meta.to_string().as_bytes());
    for bytes in tensors {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    format!("{:032x}", hasher.digest128())
}

/// Opens `DIR/index.safetensors`.
pub fn open(dir: &Path, filter: VocabularyFilter) -> Result<Index> {
    read(dir)?.into_index(filter)
}

/// Reads `DIR/index.safetensors`. If the matrix in `DIR` names another index, an error is returned.
pub fn read(dir: &Path) -> Result<Stored> {
    let path = index_path(dir);
    let bytes = std::fs::read(&path).map_err(|e| Error::io(&path, e))?;
    let matrix = matrix_path(dir);
    match matrix::index_of(&matrix) {
        Some(name) if name != hash_bytes(&bytes) => Err(Error::MatrixOfOther { matrix, index: path }),
        _ => deserialize(&bytes, &path),
    }
}

/// Parses and checks the bytes of an index file. `path` appears only in error messages.
pub fn deserialize(bytes: &[u8], path: &Path) -> Result<Stored> {
    let damaged = |why: &str| Error::damaged(path, why);
    let (_, header): (usize, Metadata) = SafeTensors::read_metadata(bytes).map_err(|e| damaged(&e.to_string()))?;
    let text =
        header.metadata().as_ref().and_then(|map| map.get(KEY)).ok_or_else(|| damaged("it has no cse metadata"))?;
    let mut meta: Value = serde_json::from_str(text).map_err(|_| damaged("its metadata is not JSON"))?;
    if meta["format"] != json!(FORMAT) {
        return Err(Error::IndexVersion {
            path: path.to_path_buf(),
            found: meta["format"].to_string(),
            supported: FORMAT,
        });
    }
    let container = SafeTensors::deserialize(bytes).map_err(|e| damaged(&e.to_string()))?;
    let tensor = |name: &str, dtype: Dtype| match container.tensor(name) {
        Ok(view) if view.dtype() == dtype && view.shape().len() == 1 => Ok(view.data()),
        _ => Err(damaged(&format!("tensor {name} is missing or has the wrong type"))),
    };
    let df = tensor("df", Dtype::U64)?;
    let max_frequency = tensor("max_tf", Dtype::F64)?;
    let offsets = tensor("offsets", Dtype::U64)?;
    let terms = tensor("terms", Dtype::U8)?;
    let stored = meta.as_object_mut().and_then(|map| map.remove("checksum"));
    if stored != Some(checksum(&meta, [df, max_frequency, offsets, terms]).into()) {
        return Err(damaged("its checksum does not match: the file was truncated or edited"));
    }
    let number = |name: &str| meta[name].as_u64().ok_or_else(|| damaged(&format!("its metadata has no {name}")));
    let counts = Counts {
        documents: number("documents")?,
        rows: number("rows")?,
        blank: number("blank")?,
        wordless: number("wordless")?,
        tokens: number("tokens")?,
        repaired: number("repaired")?,
    };
    let files: Vec<FileRecord> =
        serde_json::from_value(meta["files"].clone()).map_err(|_| damaged("its list of files is not readable"))?;
    let named = &meta["tokenizer"];
    let mut tokenizer = Tokenizer::new(
        named["name"].as_str().unwrap_or(""),
        named["lowercase"].as_bool().unwrap_or(true),
        named["nfkc"].as_bool().unwrap_or(false), // missing in older indexes
    )
    .map_err(|_| damaged("its tokenizer is unknown"))?;
    if tokenizer.rule == Rule::Wordpieces {
        let hash = named["pieces"].as_str().unwrap_or("");
        tokenizer.pieces = u128::from_str_radix(hash, 16)
            .map_err(|_| damaged("its metadata has no hash of the tokenizer's pieces"))?;
    }
    let stats = Stats {
        counts,
        terms: Terms { bytes: terms.to_vec(), offsets: from_le(offsets, u64::from_le_bytes) },
        df: from_le(df, u64::from_le_bytes),
        max_frequency: from_le(max_frequency, f64::from_le_bytes),
    };
    check(&stats).map_err(damaged)?;
    Ok(Stored { tokenizer, files, stats })
}

/// Checks the invariants that the rest of the code relies on.
fn check(stats: &Stats) -> Result<(), &'static str> {
    let (terms, v) = (&stats.terms, stats.df.len());
    let offsets = &terms.offsets;
    if offsets.len() != v + 1 || stats.max_frequency.len() != v {
        return Err("its tensors differ in length");
    }
    if offsets[0] != 0 || offsets[v] != terms.bytes.len() as u64 || offsets.windows(2).any(|pair| pair[0] > pair[1]) {
        return Err("its term offsets are out of order");
    }
    // Checking the whole buffer once, and then each boundary, is far faster than checking each term.
    let text = std::str::from_utf8(&terms.bytes).map_err(|_| "its terms are not UTF-8")?;
    if offsets.iter().any(|&at| !text.is_char_boundary(at as usize)) {
        return Err("its terms are not UTF-8");
    }
    let out_of_order = |t| terms.get(t - 1) >= terms.get(t);
    if in_pool(|| (1..v).into_par_iter().any(out_of_order)) {
        return Err("its terms are not in byte order");
    }
    let n = stats.counts.documents;
    if stats.df.iter().any(|&df| df == 0 || df > n) || stats.max_frequency.iter().any(|&x| !(x > 0.0 && x <= 1.0)) {
        return Err("its statistics are out of range");
    }
    Ok(())
}

/// Returns numbers as little-endian bytes.
pub fn le_bytes<T, const N: usize>(items: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    items.iter().flat_map(bytes).collect()
}

fn from_le<T>(bytes: &[u8], number: impl Fn([u8; 8]) -> T) -> Vec<T> {
    bytes.chunks_exact(8).map(|chunk| number(chunk.try_into().expect("eight bytes"))).collect()
}
