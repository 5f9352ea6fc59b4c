"""Exclusive locks on files and folders. The operating system releases a lock when the process that holds it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["lock", "locked"]

if sys.platform == "win32":
    import errno
    import msvcrt

    # Position of the byte that is locked. On Windows, other handles cannot read or write a locked byte, so it lies
    # beyond the end of every lock file. The Rust core locks whole files, including this byte.
    BYTE = 1 << 30

    def _lock(descriptor: int, wait: bool) -> None:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, BYTE, os.SEEK_SET)
        try:
            while True:
                try:
                    msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                    return
                except OSError as error:
                    if error.errno not in (errno.EACCES, errno.EDEADLK):
                        raise
                    if not wait:
                        raise BlockingIOError(error.errno, error.strerror) from None
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock(descriptor: int, *, wait: bool = False) -> bool:
    """Locks an open file until it is closed.

    Args:
        descriptor: File descriptor, open for writing.
        wait: Wait until the lock is free instead of raising an error.

    Returns:
        True if the file was locked; False if its file system does not support locks, as is the case for some network
        file systems.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    try:
        _lock(descriptor, wait)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Context manager that locks a file or folder, which may be renamed or removed within the context.

    On Windows, where an open file cannot be renamed and a folder cannot be opened, a file next to ``path`` is locked
    instead, and removed at the end.

    Args:
        path: An existing file or folder.

    Yields:
        True if the file was locked; False if its file system does not support locks.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    if sys.platform == "win32":
        path = path.with_name(f".{path.name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        yield lock(descriptor)
    finally:
        os.close(descriptor)
        if sys.platform == "win32":
            with suppress(OSError):  # another process has opened it
                path.unlink()
