//! Writes the rows of a corpus to files that can be mapped into memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::text::blank::count_words;
use crate::text::reader::{FileRecord, Input, ReadOptions, Reader, collect_results};
use crate::text::row_key::row_key;

/// A file that is being written, with its path for error messages.
struct Part {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Part {
    fn create(dir: &Path, name: &str) -> Result<Self> {
        let path = dir.join(name);
        let file = File::create(&path).map_err(|source| Error::io(&path, source))?;
        Ok(Part { path, file: BufWriter::with_capacity(1 << 20, file) })
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|source| Error::io(&self.path, source))
    }

    fn close(mut self) -> Result<()> {
        self.file.flush().map_err(|source| Error::io(&self.path, source))
    }
}

/// Writes the rows of `files`, in order, into the existing folder `dir`:
///
/// * `rows.txt`: the texts of the rows, one after the other, without separators;
/// * `ends.u64`: the byte offset of the end of each row in `rows.txt`;
/// * `words.u32`: the number of words in each row, as counted by [`count_words`]; 0 for a blank row;
/// * `hashes.u64`: the XXH3 hash (64 bits) of each row;
/// * `keys.u64`: the key of each row, see [`row_key`].
///
/// All numbers are little-endian. Only one chunk is held in memory at a time. Returns the number of rows, the records of
/// the files, and the number of rows in which bytes that are not UTF-8 were replaced.
pub fn write(
    files: Vec<Input>,
    options: ReadOptions,
    dir: &Path,
    progress: &Progress,
) -> Result<(u64, Vec<FileRecord>, u64)> {
    let reader = Reader::open(files, options, progress)?;
    let mut parts = [
        Part::create(dir, "rows.txt")?,
        Part::create(dir, "ends.u64")?,
        Part::create(dir, "words.u32")?,
        Part::create(dir, "hashes.u64")?,
        Part::create(dir, "keys.u64")?,
    ];
    let (mut rows, mut end, mut repaired) = (0u64, 0u64, 0u64);
    let (mut failure, mut buffer) = (None, String::new());
    collect_results(vec![reader.work(|chunk| {
        chunk.for_each_row(|_, row| {
            rows += 1;
            end += row.len() as u64;
            let values: [&[u8]; 5] = [
                row.as_bytes(),
                &end.to_le_bytes(),
                &count_words(row).to_le_bytes(),
                &xxh3_64(row.as_bytes()).to_le_bytes(),
                &row_key(row, &mut buffer).to_le_bytes(),
            ];
            for (part, bytes) in parts.iter_mut().zip(values) {
                if failure.is_none() {
                    failure = part.put(bytes).err();
                }
            }
        })?;
        repaired += chunk.repaired;
        failure.take().map_or(Ok(()), Err)
    })])?;
    for part in parts {
        part.close()?;
    }
    Ok((rows, reader.into_records()?, repaired))
}
