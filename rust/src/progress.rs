//! Progress of long calls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Progress of a long call, and a flag that stops the call; shared with the code that shows a progress bar.
#[derive(Debug, Default)]
pub struct Progress {
    /// Total number of bytes to read, before decompression; then that of the matrix to write. Standard input, whose size is unknown, counts as 0.
    pub total: AtomicU64,
    /// Number of bytes read, or written to the matrix, so far.
    pub done: AtomicU64,
    /// If set to true, the call stops with [`Error::Interrupted`].
    pub cancelled: AtomicBool,
}

impl Progress {
    /// Returns [`Error::Interrupted`] if the call was cancelled.
    pub fn check(&self) -> Result<()> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        Ok(())
    }
}
