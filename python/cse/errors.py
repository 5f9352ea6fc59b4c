"""The exception for mistakes of the user, and the wording of system errors."""

from __future__ import annotations

import os

from ._core import InputError

__all__ = ["InputError", "sentence"]


def sentence(error: Exception) -> str:
    """One sentence for a user's mistake or a system error, with the path if there is one."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        if isinstance(error, FileNotFoundError):
            return f"{os.fspath(error.filename)}: no such file; check the path"
        return f"{os.fspath(error.filename)}: {error.strerror.lower()}"
    return str(error)
