//! Output: files that appear complete or not at all, and standard output.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A file that is written under a temporary name in the folder of its destination.
///
/// [`commit`](Self::commit) renames it; dropping it without a commit removes it. A symbolic link is followed. A path that
/// is not a regular file (a device, a pipe) cannot be replaced, and is written to directly.
pub struct PendingFile {
    path: PathBuf,
    temporary: Option<tempfile::NamedTempFile>,
}

impl PendingFile {
    /// Creates the temporary file and calls `write` with it.
    pub fn write(path: &Path, write: impl FnOnce(&mut File) -> io::Result<()>) -> Result<Self> {
        let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
        let attempt = || {
            if std::fs::metadata(&path).is_ok_and(|meta| !meta.is_file()) {
                write(&mut File::options().write(true).open(&path)?)?;
                return Ok(None);
            }
            let mut builder = tempfile::Builder::new();
            builder.prefix(".cse-").suffix(".tmp");
            #[cfg(unix)]
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
            let mut temporary = builder.tempfile_in(match path.parent() {
                Some(folder) if folder != Path::new("") => folder,
                _ => Path::new("."),
            })?;
            write(temporary.as_file_mut())?;
            Ok(Some(temporary))
        };
        match attempt() {
            Ok(temporary) => Ok(PendingFile { path, temporary }),
            Err(source) => Err(failed(&path, source)),
        }
    }

    /// Renames the temporary file to its destination, replacing a file of that name.
    ///
    /// There is no fsync: an interrupted process or a full disk leaves the old file in place, and flushing a hundred
    /// megabytes takes longer than computing them. Only a power failure can lose the new file.
    pub fn commit(self) -> Result<()> {
        let Some(temporary) = self.temporary else {
            return Ok(());
        };
        let renamed = temporary.persist(&self.path);
        renamed.map(drop).map_err(|e| failed(&self.path, e.error))
    }
}

/// Returns standard output as a file of its own. If it is closed, or not open for writing, that is an error.
///
/// [`io::stdout`] is not used because it ignores writes if standard output is closed.
#[cfg(unix)]
pub fn standard_output() -> Result<File> {
    use std::os::fd::AsFd;

    let closed = |_| Error::OutputClosed;
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(closed)?);
    output.write(b"").map(drop).map_err(closed)?; // fails if it is open for reading only
    Ok(output)
}

/// Returns standard output.
#[cfg(not(unix))]
pub fn standard_output() -> Result<io::Stdout> {
    Ok(io::stdout())
}

fn failed(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_path_buf(),
        source,
    }
}
