"""Exclusive locks on files and folders. The operating system releases a lock when the process that holds it ends."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError


def lock(descriptor: int, taken: str = "", *, wait: bool = False) -> bool:
    """Locks an open file until it is closed, with the kind of lock that the Rust core uses.

    Args:
        descriptor: File descriptor, open for writing.
        taken: Message of an ``InputError`` to raise if another process holds the lock.
        wait: Wait until the lock is free instead of raising an error.

    Returns:
        True if the file was locked; False if its file system does not support locks, as is the case for some network
        file systems.

    Raises:
        BlockingIOError: If another process holds the lock and ``taken`` is empty.
    """
    from filelock import lock_descriptor

    try:
        held = lock_descriptor(descriptor, blocking=wait)
    except OSError:
        return False
    if not held and taken:
        raise InputError(taken)
    if not held:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return True


@contextmanager
def locked(path: Path, taken: str = "") -> Iterator[bool]:
    """Context manager that locks a file or folder, which may be renamed or removed within the context.

    On Windows, where an open file cannot be renamed and a folder cannot be opened, a file next to ``path`` is locked
    instead, and removed at the end.

    Args:
        path: An existing file or folder.
        taken: See ``lock``, as well as for the errors.

    Yields:
        True if the file was locked; False if its file system does not support locks.
    """
    if sys.platform == "win32":
        path = path.with_name(f".{path.name}.lock")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    else:
        descriptor = os.open(path, os.O_RDONLY)
    try:
        yield lock(descriptor, taken)
    finally:
        os.close(descriptor)
        if sys.platform == "win32":
            with suppress(OSError):  # another process has opened it
                path.unlink()
