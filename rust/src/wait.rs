//! Waits for pipes and terminals, and stops waiting if the call is cancelled.

use crate::error::Result;
use crate::progress::Progress;

/// The condition to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// A read does not block.
    Readable,
    /// A write of a few bytes does not block.
    Writable,
}

/// Waits until file descriptor `fd` is ready, or returns [`Error::Interrupted`](crate::Error::Interrupted) if the call
/// is cancelled first.
#[cfg(unix)]
pub(crate) fn wait(fd: i32, until: Until, progress: &Progress) -> Result<()> {
    let events = match until {
        Until::Readable => libc::POLLIN,
        Until::Writable => libc::POLLOUT,
    };
    loop {
        progress.check()?;
        let mut poll = libc::pollfd {
            fd,
            events,
            revents: 0,
        };
        // SAFETY: `poll` is one valid pollfd, which the call reads and writes.
        let ready = unsafe { libc::poll(&mut poll, 1, 100) };
        // If the file descriptor has an error, the read or write that follows reports it.
        if ready > 0
            || ready < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR)
        {
            return progress.check();
        }
    }
}

/// Returns an error if the call was cancelled. On systems other than Unix, this function does not wait.
#[cfg(not(unix))]
pub(crate) fn wait(_fd: i32, _until: Until, progress: &Progress) -> Result<()> {
    progress.check()
}
