"""The exception for invalid user input, and formatting of system errors."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._core import InputError

__all__ = ["InputError", "Interrupted", "RunError", "check_texts", "sentence", "shortened"]


class RunError(RuntimeError):
    """A training run that failed after it began; the message says at which step, why, and what to do."""


class Interrupted(KeyboardInterrupt):
    """A run was stopped by a signal after its state was saved; ``code`` is the exit status, 130 or 143."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def check_texts(texts: Iterable[str]) -> list[str]:
    """Converts an iterable of texts to a list of ``str``.

    Raises:
        InputError: If ``texts`` is a single string, is not iterable, or has an element that is not a string.
    """
    if isinstance(texts, (str, bytes)) or not isinstance(texts, Iterable):
        raise InputError(f"texts: a list of sentences was expected, not one {type(texts).__name__}")
    listed = list(texts)
    for number, text in enumerate(listed):
        if not isinstance(text, str):
            raise InputError(f"texts: element {number} is {text!r}, and it must be a string")
    return [str(text) for text in listed]  # NumPy's str_ becomes str


def sentence(error: Exception) -> str:
    """Formats an ``InputError`` or ``OSError`` as one line, with the path if the error has one."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        if isinstance(error, FileNotFoundError):
            return f"{os.fspath(error.filename)}: no such file; check the path"
        return f"{os.fspath(error.filename)}: {error.strerror.lower()}"
    return str(error)


def shortened(text: str, length: int = 120) -> str:
    """Returns a text cut at a number of characters, of which the last is then an ellipsis."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "\u2026"
