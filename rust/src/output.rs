//! Output: files that appear complete or not at all, and standard output.

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::wait::{Until, open_pipe, wait};

/// Prefix and suffix of the names of temporary files. Any file that has both is treated as a temporary file of cse.
const PREFIX: &str = ".cse-core-";
const SUFFIX: &str = ".tmp";

/// A file that is written under a temporary name in the folder of its destination.
///
/// [`commit`](Self::commit) renames the file; dropping this object without a commit removes it. If the process is
/// killed, the file is removed when the next temporary file is created in the same folder. A symbolic link to an
/// existing file is followed. The file keeps the permissions of a file that it replaces. A path that is not a regular
/// file (a device) cannot be replaced and is written to directly.
pub struct PendingFile {
    /// The path as it was given, for messages.
    given: PathBuf,
    path: PathBuf,
    temporary: Option<NamedTempFile>,
}

impl PendingFile {
    /// Creates the temporary file and calls `write` with it.
    pub fn write(given: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Self> {
        let path = std::fs::canonicalize(given).unwrap_or_else(|_| given.to_path_buf());
        let failed = |e| failed(given, e);
        let given = given.to_path_buf();
        if std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
            let mut file = File::options().write(true).open(&path).map_err(failed)?;
            write(&mut file).map_err(failed)?;
            let temporary = None;
            return Ok(PendingFile { given, path, temporary });
        }
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        if !folder.exists() {
            let folder = folder.to_path_buf();
            return Err(Error::NoFolder { path: given, folder });
        }
        remove_abandoned(folder);
        let mut temporary = create(folder).map_err(failed)?;
        if let Ok(meta) = std::fs::metadata(&path) {
            let kept = temporary.as_file().set_permissions(meta.permissions());
            kept.map_err(failed)?;
        }
        write(temporary.as_file_mut()).map_err(failed)?;
        let temporary = Some(temporary);
        Ok(PendingFile { given, path, temporary })
    }

    /// Renames the temporary file to its destination, replacing a file of that name.
    ///
    /// The file is not flushed to disk (fsync), because flushing a hundred megabytes takes longer than computing them.
    /// An interrupted process or a full disk leaves the old file in place; only a power failure can lose the new file.
    pub fn commit(self) -> Result<()> {
        let Some(temporary) = self.temporary else {
            return Ok(());
        };
        let renamed = temporary.persist(&self.path);
        renamed.map(drop).map_err(|e| failed(&self.given, e.error))
    }
}

/// Creates a temporary file and locks it. The lock shows other processes that the file is in use.
fn create(folder: &Path) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    loop {
        let temporary = builder.tempfile_in(folder).map_err(without_path)?;
        match temporary.as_file().try_lock() {
            // Another process may have removed the file before it was locked.
            Ok(()) if !is_removed(temporary.as_file())? => return Ok(temporary),
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(_)) => return Ok(temporary), // a file system without locks
        }
    }
}

fn is_removed(file: &File) -> io::Result<bool> {
    Ok(std::os::unix::fs::MetadataExt::nlink(&file.metadata()?) == 0)
}

/// Removes the temporary files of killed processes, that is, temporary files that no process has locked.
fn remove_abandoned(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_ours = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
        if !name.to_str().is_some_and(is_ours) || !entry.file_type().is_ok_and(|t| t.is_file()) {
            continue;
        }
        if let Ok(file) = File::open(entry.path())
            && file.try_lock().is_ok()
        {
            let _ = std::fs::remove_file(entry.path()); // if this fails, the file stays until the next attempt
        }
    }
}

/// Extracts the operating system's error from an error of `tempfile`, whose message would name the temporary file.
fn without_path(error: io::Error) -> io::Error {
    let inner = error.get_ref().and_then(|e| e.source());
    let code = inner.and_then(|e| e.downcast_ref::<io::Error>()).and_then(io::Error::raw_os_error);
    code.map_or(error, io::Error::from_raw_os_error)
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.to_path_buf(), source }
}

/// Standard output, or a named pipe. Writing to a pipe or a terminal can be cancelled.
pub struct StandardOutput<'a> {
    output: File,
    /// The file descriptor, if writing can block.
    blocking: Option<i32>,
    progress: &'a Progress,
}

/// Number of bytes that can be written to a ready pipe without blocking (PIPE_BUF on Linux).
const PIECE: usize = 4096;

impl<'a> StandardOutput<'a> {
    /// Opens standard output; returns an error if it is closed or open for reading only.
    ///
    /// Writes bypass [`io::stdout`], which ignores them if standard output is closed.
    pub fn open(progress: &'a Progress) -> Result<Self> {
        let closed = |_| Error::OutputClosed;
        let mut output = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(closed)?);
        output.write(b"").map(drop).map_err(closed)?; // fails if standard output is open for reading only
        let regular = output.metadata().is_ok_and(|meta| meta.is_file());
        let blocking = (!regular).then(|| output.as_raw_fd());
        Ok(StandardOutput { output, blocking, progress })
    }

    /// Opens a named pipe, and waits until another process reads from it.
    pub fn of_pipe(path: &Path, progress: &'a Progress) -> Result<Self> {
        let output = open_pipe(path, Until::Writable, progress)?;
        let blocking = Some(output.as_raw_fd());
        Ok(StandardOutput { output, blocking, progress })
    }
}

impl Write for StandardOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(fd) = self.blocking else {
            return self.output.write(bytes);
        };
        wait(fd, Until::Writable, self.progress).map_err(io::Error::other)?;
        self.output.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
