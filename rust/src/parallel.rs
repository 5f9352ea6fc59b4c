//! Thread pools.

use crate::error::{Error, Result};

/// The largest number of threads that may be asked for.
const MAX_THREADS: usize = 1024;

/// Runs `work` in a pool of `threads` threads; 0 means one per available core.
pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    if threads > MAX_THREADS {
        let why =
            format!("{threads} was given, and it must be at most {MAX_THREADS}; 0 takes all cores");
        return Err(Error::invalid("--threads", why));
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::invalid("--threads", e.to_string()))?;
    Ok(pool.install(work))
}

/// Runs `work` once on each thread of the current pool and returns all results.
pub fn on_each_thread<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    rayon::broadcast(|_| work())
}
