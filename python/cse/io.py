"""Writing files so that nothing is lost: beside their place, then renamed; and with the path in every complaint."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["file_mode", "naming", "write_atomically"]


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Puts the path into whatever goes wrong while writing there.

    Libraries written in Rust report a full disk as an exception of their own; those become an OSError here.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    except Exception as error:
        if "os error" not in str(error) and "Error while serializing" not in str(error):
            raise
        raise OSError(f"{path}: cannot be written ({error})") from None


def file_mode() -> int:
    """What an ordinary new file may be: 0666 without the user's mask."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def write_atomically(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls ``write`` with a file that takes the place of ``path`` when all went well.

    A link is followed; what is no regular file (a device, a pipe) is written to directly.
    """
    path = Path(os.path.realpath(path))
    with naming(path):
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                write(file)
            return
        temporary = None
        try:
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".cse-", suffix=".tmp", delete=False) as file:
                temporary = file.name
                write(file)  # type: ignore[arg-type]
            os.chmod(temporary, file_mode())
            os.replace(temporary, path)
        finally:
            if temporary is not None and os.path.exists(temporary):
                os.unlink(temporary)
