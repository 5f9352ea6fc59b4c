//! Thread pools.
//!
//! All parallel code runs in pools made by this module, never in rayon's global pool. A forked child process does not
//! have the threads of its parent's pools, and a call into such a pool would wait forever. A child process cannot
//! replace the global pool, but it can make new pools with this module. Each of these pools is used only by the process
//! that made it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use rayon::ThreadPool;

use crate::error::{Error, Result};

/// Maximum number of threads that a call may ask for.
const MAX_THREADS: usize = 1024;

/// Number of threads for calls that ask for 0 threads. If this number is 0 too, such calls use one thread per available
/// core.
static DEFAULT_THREADS: AtomicUsize = AtomicUsize::new(0);

/// Sets the default number of threads. It applies to calls that ask for 0 threads, and to the shared pool from its next
/// use on.
pub fn set_default_threads(threads: usize) -> Result<()> {
    check_threads(threads)?;
    DEFAULT_THREADS.store(threads, Ordering::Relaxed);
    if let Ok(mut shared) = SHARED.try_lock() {
        std::mem::forget(shared.take()); // dropping a pool of the parent process would wait forever
    }
    Ok(())
}

fn check_threads(threads: usize) -> Result<()> {
    if threads > MAX_THREADS {
        let why = format!("must be at most {MAX_THREADS}, got {threads}; 0 uses all cores");
        return Err(Error::invalid("--threads", why));
    }
    Ok(())
}

/// Runs `work` in a new pool of `threads` threads; 0 means the number set by [`set_default_threads`].
///
/// Calls that read or write files use this function. They do not share a pool, and therefore never wait for another
/// call that is blocked on its input.
pub fn with_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> Result<T> {
    check_threads(threads)?;
    Ok(new_pool(threads)?.install(work))
}

/// Runs `work` once on each thread of the current pool and returns all results.
pub fn on_each_thread<T: Send>(work: impl Fn() -> T + Sync) -> Vec<T> {
    rayon::broadcast(|_| work())
}

/// Runs `work` in the current pool, or in a shared pool if the calling thread is not in one. `work` must not read or
/// write files.
///
/// If no thread can be started, `work` runs in a pool that consists of only the calling thread.
pub fn in_pool<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    if rayon::current_thread_index().is_some() {
        return work();
    }
    shared_pool().install(work)
}

fn new_pool(threads: usize) -> Result<ThreadPool> {
    let threads = match threads {
        0 => DEFAULT_THREADS.load(Ordering::Relaxed),
        given => given,
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).thread_name(|i| format!("cse-core-{i}")).build();
    pool.map_err(|e| Error::invalid("--threads", e.to_string()))
}

/// The shared pool, and the process that made it.
static SHARED: Mutex<Option<(u32, Arc<ThreadPool>)>> = Mutex::new(None);

fn shared_pool() -> Arc<ThreadPool> {
    let process = std::process::id();
    // Do not wait for the lock: if another thread of the parent held it during a fork, it is never released in the
    // child. Each call in such a child makes a new pool.
    let Ok(mut shared) = SHARED.try_lock() else {
        return Arc::new(any_pool());
    };
    match &*shared {
        Some((owner, pool)) if *owner == process => pool.clone(),
        _ => {
            let pool = Arc::new(any_pool());
            let stale = shared.replace((process, pool.clone()));
            std::mem::forget(stale); // dropping a pool of the parent process would wait forever
            pool
        }
    }
}

/// Returns a pool with the default number of threads or, if no thread can be started, a pool that consists of only the
/// calling thread.
fn any_pool() -> ThreadPool {
    new_pool(0).unwrap_or_else(|_| {
        let here = rayon::ThreadPoolBuilder::new().num_threads(1);
        here.use_current_thread().build().expect("a pool of the calling thread starts no thread")
    })
}
