"""Options for reading files, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from ..errors import InputError

__all__ = ["MAX_LINE_BYTES", "ReadOptions", "SourceFile", "complete", "reading_options"]

MAX_LINE_BYTES = 1 << 20


class ReadOptions(TypedDict, total=False):
    """How files are read."""

    encoding_errors: str
    """Bytes that are not UTF-8: ``strict`` refuses them (the default), ``replace`` counts them."""
    max_line_bytes: int
    """Longer rows are refused; 2**20."""
    threads: int
    """0, the default, uses all cores. No result depends on it."""


_DEFAULTS: ReadOptions = {"encoding_errors": "strict", "max_line_bytes": MAX_LINE_BYTES, "threads": 0}


@dataclass(frozen=True)
class SourceFile:
    """A file that a corpus was read from.

    Attributes: path as given, bytes as stored, rows, and the XXH3 hash (128 bits, hexadecimal).
    """

    path: str
    bytes: int
    rows: int
    xxh3: str
    column: str | None = None
    """The column of a table; None for a text file."""


def reading_options(**reading: Unpack[ReadOptions]) -> ReadOptions:
    """All reading options; ``InputError`` for a number below 0 or above what 63 bits hold."""
    options: ReadOptions = complete(_DEFAULTS, reading)
    for name, number in (("threads", options["threads"]), ("max_line_bytes", options["max_line_bytes"])):
        if isinstance(number, bool) or not isinstance(number, int):
            raise InputError(f"--{name.replace('_', '-')}: {number!r} was given, and it must be an integer")
        if not 0 <= number < 2**63:
            raise InputError(f"--{name.replace('_', '-')}: {number} was given, and it must be 0 or more")
    return options


def complete(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The defaults, overridden by what was given; ``TypeError`` for an option that has no default."""
    unknown = set(given) - set(defaults)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; choose from {', '.join(defaults)}")
    return {**defaults, **given}
