//! TF-IDF matrices (rows x terms) in CSR format. The matrix of the corpus is written to an `.npz` file, which
//! `scipy.sparse.load_npz` reads; the matrix of new texts is returned in memory.
//!
//! In the file, matrix row i is row i of the corpus (empty if that row is blank), and column t is term t in byte order.
//! The values are ln(1 + c/L) * ln(N/df) in float64 ([`crate::index::formula`] explains the symbols). The file is not
//! compressed, so it is read at the speed of the disk. The comment of the archive names the index that was built
//! together with the matrix, by the checksum of its file.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

use rayon::prelude::*;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::error::Result;
use crate::index::Index;
use crate::index::formula::{idf, tf};
use crate::index::stats::{CountedRows, Part, Stats};
use crate::progress::Progress;
use crate::text::tokenize::Scratch;

/// The TF-IDF matrix of some texts over the terms of an index.
#[derive(Debug, Default)]
pub struct Transformed {
    pub indptr: Vec<i64>,
    pub indices: Vec<i64>,
    pub values: Vec<f64>,
}

/// Returns a matrix with one row per text and the values ln(1 + c/L) * idf. Terms that are not in the index count
/// towards L but have no column.
pub fn transform<'a>(index: &Index, texts: impl Iterator<Item = &'a str>) -> Transformed {
    let mut out = Transformed { indptr: vec![0], ..Transformed::default() };
    let mut scratch = Scratch::default();
    let mut row: Vec<u32> = Vec::new();
    for text in texts {
        let mut length = 0;
        row.clear();
        index.tokenizer.for_each(text, &mut scratch, |_, _, term| {
            length += 1;
            let known = index.find(&term.key(), term.bytes());
            row.extend(known.map(|known| index.by_rank[known.rank as usize]));
        });
        row.sort_unstable();
        for same in row.chunk_by(|a, b| a == b) {
            let idf = index.idf[same[0] as usize];
            out.indices.push(i64::from(same[0]));
            out.values.push(tf(same.len() as u32, length) * idf);
        }
        out.indptr.push(out.indices.len() as i64);
    }
    out
}

/// Some rows of the matrix.
struct Csr {
    columns: Vec<u32>,
    values: Vec<f64>,
    row_ends: Vec<u64>,
}

/// Beginning of the comment of the archive; the checksum of the index follows.
const COMMENT: &str = "cse index ";
/// Number of digits of the checksum.
const DIGITS: usize = 32;

/// Returns the checksum of the index to which a matrix belongs; `None` if the file does not name it, or does not exist.
pub fn index_of(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    file.seek(SeekFrom::End(-((COMMENT.len() + DIGITS) as i64))).ok()?;
    let mut comment = String::new();
    file.read_to_string(&mut comment).ok()?;
    comment.strip_prefix(COMMENT).map(str::to_owned)
}

/// Writes the matrix of `parts`, whose counted rows must have been kept; `stats` are the merged statistics of all
/// parts, and `index` is the checksum of the index file. Returns an error if the call is cancelled.
pub fn write_npz(file: &mut File, index: &str, stats: &Stats, parts: Vec<Part>, progress: &Progress) -> io::Result<()> {
    let idfs: Vec<f64> = stats.df.par_iter().map(|&df| idf(stats.counts.documents, df)).collect();
    let mut chunks: Vec<(u64, CountedRows, usize)> = Vec::new();
    let mut columns_of: Vec<Vec<u32>> = Vec::new();
    for (p, part) in parts.into_iter().enumerate() {
        columns_of.push(columns(stats, &part));
        chunks.extend(part.rows.into_iter().map(|(seq, rows)| (seq, rows, p)));
    }
    chunks.par_sort_unstable_by_key(|chunk| chunk.0);
    let pieces: Vec<Csr> = chunks
        .into_par_iter()
        .map(|(_, rows, p)| progress.check().map(|()| csr(&rows, &columns_of[p], &idfs)))
        .collect::<Result<_>>()
        .map_err(io::Error::other)?;

    let nnz: u64 = pieces.iter().map(|piece| piece.columns.len() as u64).sum();
    let (n_rows, n_terms) = (stats.counts.rows, stats.terms.len() as u64);
    let wide = nnz > i32::MAX as u64 || n_terms > i32::MAX as u64;
    let width = if wide { 8 } else { 4 };
    let size = nnz * (width + 8) + (n_rows + 1) * width;
    progress.done.store(0, Ordering::Relaxed);
    progress.total.store(size, Ordering::Relaxed);
    let mut indptr = Vec::with_capacity(n_rows as usize + 1);
    indptr.push(0u64);
    let mut base = 0;
    for piece in &pieces {
        indptr.extend(piece.row_ends.iter().map(|end| base + end));
        base += piece.columns.len() as u64;
    }

    let mut first_error = None;
    let capture = ErrorCapture { file, progress, first_error: &mut first_error };
    let mut zip = ZipWriter::new(BufWriter::with_capacity(1 << 20, capture));
    member(&mut zip, "format.npy", "|S3", "()", |out| out.write_all(b"csr"))?;
    member(&mut zip, "shape.npy", "<i8", "(2,)", |out| write_as(out, [n_rows, n_terms].iter(), |x| x.to_le_bytes()))?;
    let integer = if wide { "<i8" } else { "<i4" };
    member(&mut zip, "indptr.npy", integer, &format!("({},)", indptr.len()), |out| {
        if wide {
            write_as(out, indptr.iter(), |x| x.to_le_bytes())
        } else {
            write_as(out, indptr.iter(), |&x| (x as u32).to_le_bytes())
        }
    })?;
    let shape = format!("({nnz},)");
    member(&mut zip, "indices.npy", integer, &shape, |out| {
        pieces.iter().try_for_each(|piece| {
            if wide {
                write_as(out, piece.columns.iter(), |&x| u64::from(x).to_le_bytes())
            } else {
                write_as(out, piece.columns.iter(), |x| x.to_le_bytes())
            }
        })
    })?;
    member(&mut zip, "data.npy", "<f8", &shape, |out| {
        pieces.iter().try_for_each(|piece| write_as(out, piece.values.iter(), |x| x.to_le_bytes()))
    })?;
    zip.set_comment(format!("{COMMENT}{index}"))?;
    zip.finish()?.flush()?;
    first_error.map_or(Ok(()), Err)
}

/// A writer that records its first error and ignores all later writes. Otherwise, a `ZipWriter` that is dropped after
/// an error would try to finish the archive and print a message to standard error.
struct ErrorCapture<'a> {
    file: &'a mut File,
    progress: &'a Progress,
    first_error: &'a mut Option<io::Error>,
}

impl ErrorCapture<'_> {
    fn guard<T>(&mut self, fallback: T, work: impl FnOnce(&mut File) -> io::Result<T>) -> T {
        if self.first_error.is_some() {
            return fallback;
        }
        let cancelled = self.progress.check().map_err(io::Error::other);
        cancelled.and_then(|()| work(self.file)).unwrap_or_else(|error| {
            *self.first_error = Some(error);
            fallback
        })
    }
}

impl Write for ErrorCapture<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let written = buf.len();
        self.progress.done.fetch_add(written as u64, Ordering::Relaxed);
        Ok(self.guard(written, |file| file.write_all(buf).map(|()| written)))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for ErrorCapture<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        Ok(self.guard(0, |file| file.seek(to)))
    }
}

/// Returns, for each term id of `part`, its column in the matrix. The terms of `stats` and of `part` are in byte order,
/// so one pass suffices.
fn columns(stats: &Stats, part: &Part) -> Vec<u32> {
    let mut column_of = vec![0; part.local_ids.len()];
    let mut column = 0;
    for (i, &local) in part.local_ids.iter().enumerate() {
        while stats.terms.get(column) != part.stats.terms.get(i) {
            column += 1;
        }
        column_of[local as usize] = column as u32;
    }
    column_of
}

/// Computes the matrix rows of one chunk.
fn csr(rows: &CountedRows, column_of: &[u32], idfs: &[f64]) -> Csr {
    let mut out = Csr {
        columns: Vec::with_capacity(rows.ids.len()),
        values: Vec::with_capacity(rows.ids.len()),
        row_ends: Vec::with_capacity(rows.rows.len()),
    };
    let mut row: Vec<(u32, u32)> = Vec::new();
    let mut at = 0;
    for &(distinct, length) in &rows.rows {
        let next = at + distinct as usize;
        row.clear();
        row.extend(
            rows.ids[at..next].iter().map(|&id| column_of[id as usize]).zip(rows.counts[at..next].iter().copied()),
        );
        row.sort_unstable();
        let once = tf(1, length.max(1));
        for &(column, count) in &row {
            let tf = if count == 1 { once } else { tf(count, length) };
            out.columns.push(column);
            out.values.push(tf * idfs[column as usize]);
        }
        out.row_ends.push(out.columns.len() as u64);
        at = next;
    }
    out
}

type Zip<'a> = ZipWriter<BufWriter<ErrorCapture<'a>>>;

/// Writes one array as a member of the archive, uncompressed.
fn member(
    zip: &mut Zip,
    name: &str,
    dtype: &str,
    shape: &str,
    write: impl FnOnce(&mut Zip) -> io::Result<()>,
) -> io::Result<()> {
    // The date is fixed so that the same corpus gives the same bytes.
    let options = SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .last_modified_time(zip::DateTime::default())
        .large_file(true);
    zip.start_file(name, options)?;
    // In .npy version 1, the header (magic string, version, length and text) is padded to a multiple of 64 bytes.
    let mut text = format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}");
    let padding = 64 - (10 + text.len() + 1) % 64;
    text.extend(std::iter::repeat_n(' ', padding % 64));
    text.push('\n');
    zip.write_all(b"\x93NUMPY\x01\x00")?;
    zip.write_all(&(text.len() as u16).to_le_bytes())?;
    zip.write_all(text.as_bytes())?;
    write(zip)
}

/// Writes numbers as bytes, through a buffer.
fn write_as<'a, T: 'a, const N: usize>(
    out: &mut impl Write,
    items: impl Iterator<Item = &'a T>,
    bytes: impl Fn(&T) -> [u8; N],
) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(1 << 16);
    for item in items {
        buffer.extend_from_slice(&bytes(item));
        if buffer.len() >= (1 << 16) - N {
            out.write_all(&buffer)?;
            buffer.clear();
        }
    }
    out.write_all(&buffer)
}
