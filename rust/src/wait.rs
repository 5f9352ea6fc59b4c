//! Waits for pipes and terminals, and stops waiting if the call is cancelled.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Result};
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
pub(crate) fn wait(fd: i32, until: Until, progress: &Progress) -> Result<()> {
    let events = match until {
        Until::Readable => libc::POLLIN,
        Until::Writable => libc::POLLOUT,
    };
    loop {
        progress.check()?;
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        // SAFETY: `poll` is one valid pollfd, which the call reads and writes.
        let ready = unsafe { libc::poll(&mut poll, 1, 100) };
        // If the file descriptor has an error, the read or write that follows reports it.
        if ready > 0 || ready < 0 && std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return progress.check();
        }
    }
}

/// Whether a path is a named pipe, which blocks when it is opened until another process opens its other end.
pub(crate) fn is_pipe(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_fifo())
}

/// Opens a named pipe, and waits until it can be read or written. The call can be cancelled while it waits.
pub(crate) fn open_pipe(path: &Path, until: Until, progress: &Progress) -> Result<File> {
    let mut options = File::options();
    options.read(until == Until::Readable).write(until == Until::Writable).custom_flags(libc::O_NONBLOCK);
    let file = loop {
        progress.check()?;
        match options.open(path) {
            // There is no reader yet.
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            opened => break opened.map_err(|e| Error::io(path, e))?,
        }
    };
    wait(file.as_raw_fd(), until, progress)?;
    // SAFETY: the descriptor is open; the call changes only its flags.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) };
    Ok(file)
}
