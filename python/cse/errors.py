"""Exceptions for invalid input and for failed runs, and formatting of error messages."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ._core import InputError as InputError


class RunError(RuntimeError):
    """A training run or an export failed after it began; the message gives the reason."""


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
            raise InputError(f"texts: element {number} must be a string, got {text!r}")
    return [str(text) for text in listed]  # NumPy's str_ becomes str


def sentence(error: Exception) -> str:
    """Formats an ``InputError`` or ``OSError`` as one line, with the path if the error has one."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        if isinstance(error, FileNotFoundError):
            return f"{os.fspath(error.filename)}: no such file; check the path"
        return f"{os.fspath(error.filename)}: {error.strerror.lower()}"
    return str(error)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or the name of its type if the message is empty."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def shortened(text: str, length: int = 120) -> str:
    """Truncates a text to ``length`` characters, the last of which is an ellipsis if something was cut off."""
    return text if len(text) <= length else text[: length - 1].rstrip() + "\u2026"


# Maps names that other programs or papers use to the corresponding option values of cse.
OTHER_NAMES = {
    "average": "avg",
    "mean": "avg",
    "mean_pooling": "avg",
    "cls_token": "cls",
    "infonce": "standard",
    "simcse": "standard",
    "mixcse": "mixed",
    "focal-infonce": "focal",
}


def did_you_mean(given: str, choices: Iterable[str]) -> str:
    """Returns " (did you mean X?)" with the choice X that is most similar to ``given``; "" if no choice is similar."""
    from difflib import get_close_matches

    known = list(choices)
    other = OTHER_NAMES.get(given.lower())
    found = [other] if other in known else get_close_matches(given.lower(), known, n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def unknown(flag: str, given: str, choices: Iterable[str]) -> InputError:
    """Returns the error for a name that is not one of the choices."""
    known = list(choices)
    return InputError(f"{flag}: {given!r} is unknown{did_you_mean(given, known)}; choose one of {', '.join(known)}")
