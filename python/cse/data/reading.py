"""Options for reading the files of a corpus, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from ..errors import InputError

MAX_LINE_BYTES = 1 << 20


class ReadOptions(TypedDict, total=False):
    """Options for reading the files of a corpus."""

    encoding_errors: str
    """``strict`` (default): invalid UTF-8 raises ``InputError``. ``replace``: invalid bytes become U+FFFD, and the rows
    that contain them are counted."""
    max_line_bytes: int
    """Maximum length of a row in bytes; a longer row raises ``InputError``. Default: 2**20."""
    threads: int
    """Number of threads. Default: 0, all cores. It does not affect the results."""


_DEFAULTS: ReadOptions = {"encoding_errors": "strict", "max_line_bytes": MAX_LINE_BYTES, "threads": 0}


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus, as it was read.

    Attributes:
        path: Path as given.
        bytes: Size of the file as stored, before decompression.
        rows: Number of rows.
        xxh3: 128-bit XXH3 hash of the file as stored, hexadecimal.
    """

    path: str
    bytes: int
    rows: int
    xxh3: str
    column: str | None = None
    """Column of a table; None for a text file."""


def reading_options(**reading: Unpack[ReadOptions]) -> ReadOptions:
    """Returns the given reading options, with the defaults for missing ones.

    Raises:
        InputError: If a number is not an integer in [0, 2**63).
        TypeError: For an unknown option.
    """
    options: ReadOptions = complete(_DEFAULTS, reading)
    for name, number in (("threads", options["threads"]), ("max_line_bytes", options["max_line_bytes"])):
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"--{name.replace('_', '-')}: must be an integer, got {number!r}")
        if not 0 <= number < 2**63:
            raise InputError(f"--{name.replace('_', '-')}: must be from 0 to 2**63 - 1, got {number}")
    return options


def complete(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """Returns ``defaults`` updated with ``given``; raises ``TypeError`` for a name that is not in ``defaults``."""
    unknown = set(given) - set(defaults)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; choose from {', '.join(defaults)}")
    return {**defaults, **given}
