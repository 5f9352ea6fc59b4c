//! A baseline for `benches/core.py`: a straightforward program that uses one thread and only the standard library.
//!
//!     std_loop FILE [PART/PARTS]
//!
//! It computes the same statistics as `cse build-tfidf --tokenizer whitespace`: the number of documents and, for each
//! lower-cased word, its document frequency and the maximum over documents of c/L, where c is the count of the word in
//! a document of L words. With `1/2`, it reads only the first half of the file, cut at a line end; two processes can
//! thus share the work. It does not sort or merge anything, and prints only the sums that the benchmark checks.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};

#[derive(Default)]
struct Cell {
    df: u64,
    max_frequency: f64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: std_loop FILE [PART/PARTS]")?;
    let (part, parts) = match arguments.next() {
        Some(text) => parse_part(&text).ok_or("PART/PARTS must look like 1/2")?,
        None => (1, 1),
    };
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    let (start, end) = (size * (part - 1) / parts, size * part / parts);
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut at = start;
    if start > 0 {
        // A line that crosses the cut belongs to the previous part; a line that starts at the cut does not.
        reader.seek(SeekFrom::Start(start - 1))?;
        at += reader.skip_until(b'\n')? as u64 - 1;
    }

    let mut documents = 0u64;
    let mut ids: HashMap<String, u32> = HashMap::new();
    let mut cells: Vec<Cell> = Vec::new();
    let mut counts: HashMap<u32, u32> = HashMap::new(); // by word id, in one document; reused to save allocations
    let mut line = String::new();
    while at < end {
        line.clear();
        let read = reader.read_line(&mut line)?;
        if read == 0 {
            break; // the file has shrunk
        }
        at += read as u64;
        if line.is_ascii() {
            line.make_ascii_lowercase();
        } else {
            line = line.to_lowercase();
        }
        let mut length = 0u32;
        for word in line.split_whitespace() {
            length += 1;
            // `get` takes a &str; `entry` would need a new String for every word.
            let id = match ids.get(word) {
                Some(&id) => id,
                None => {
                    let id = u32::try_from(cells.len())?;
                    ids.insert(word.to_owned(), id);
                    cells.push(Cell::default());
                    id
                }
            };
            *counts.entry(id).or_default() += 1;
        }
        documents += u64::from(length > 0);
        for (id, count) in counts.drain() {
            let cell = &mut cells[id as usize];
            cell.df += 1;
            cell.max_frequency = cell.max_frequency.max(f64::from(count) / f64::from(length));
        }
    }

    let df: u64 = cells.iter().map(|cell| cell.df).sum();
    let max_frequency: f64 = cells.iter().map(|cell| cell.max_frequency).sum();
    let terms = cells.len();
    println!(r#"{{"documents": {documents}, "terms": {terms}, "df": {df}, "max_tf": {max_frequency}}}"#);
    Ok(())
}

fn parse_part(text: &str) -> Option<(u64, u64)> {
    let (part, parts) = text.split_once('/')?;
    let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
    (1 <= part && part <= parts).then_some((part, parts))
}
