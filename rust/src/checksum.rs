//! Checksums of files and bytes: XXH3-128, written as 32 hexadecimal digits.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

/// Number of bytes read at a time: few enough to stay in the processor's cache until they are hashed.
const BLOCK: usize = 1 << 18;

/// Returns the checksum of bytes.
pub fn hash_bytes(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}

/// Returns the checksum of the contents of a file.
///
/// The checksum detects accidental damage, but does not protect against an attacker. Computing it takes about as long
/// as reading the contents from memory.
pub fn hash_file(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Xxh3::new();
    let mut block = vec![0; BLOCK];
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(format!("{:032x}", hasher.digest128())),
            Ok(n) => hasher.update(&block[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
