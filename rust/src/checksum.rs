//! The checksum of a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

/// Bytes read at a time; they stay in the cache of the processor until they are hashed.
const BLOCK: usize = 1 << 18;

/// Returns the XXH3-128 checksum of the contents of a file. It detects accidental damage and takes about as long as
/// reading the file from memory; it does not protect against an attacker.
pub fn xxh3_of_file(path: &Path) -> io::Result<u128> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(hasher.digest128()),
            Ok(n) => hasher.update(&block[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
