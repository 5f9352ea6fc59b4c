//! The checksum of a file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

/// Number of bytes read at a time: few enough to stay in the processor's cache until they are hashed.
const BLOCK: usize = 1 << 18;

/// Returns the XXH3-128 checksum of the contents of a file.
///
/// The checksum detects accidental damage, but does not protect against an attacker. Computing it takes about as long
/// as reading the contents from memory.
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
