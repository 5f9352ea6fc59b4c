"""Reads the records of .jsonl files, and finds the faulty one, whose line and content pyarrow does not report."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ..errors import InputError

KINDS = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}
TWICE = object()


def json_records(
    path: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number and the record of each line that is not blank; ``hook`` is passed on to ``json.loads``.

    Raises ``InputError`` for a line that is not a JSON object.
    """
    import pyarrow as pa

    with io.BufferedReader(pa.input_stream(path)) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:  # the core reports invalid UTF-8
                record = json.loads(line.decode("utf-8-sig", errors="replace"), object_pairs_hook=hook)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise InputError(f"{path}: line {number} is not a JSON object; .jsonl holds one on each line") from None
            yield number, record


def check_records(path: str, column: str) -> None:
    """Raises ``InputError`` for the first faulty record, with its line number.

    A record is faulty if it is not a JSON object, or if its field ``column`` occurs twice or is neither text nor
    null. Nothing is raised if the file cannot be read.
    """
    import pyarrow as pa

    def record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        again = sum(name == column for name, _ in pairs) > 1
        return {**dict(pairs), **({column: TWICE} if again else {})}

    with suppress(OSError, pa.ArrowException):
        for number, found in json_records(path, record):
            value = found.get(column)
            if value is TWICE:
                raise InputError(
                    f"{path}: line {number}: the record has the field {column!r} twice; remove one"
                ) from None
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"{path}: line {number}: column {column!r} must be text, got {_described(value)}"
                ) from None


def _described(value: Any) -> str:
    kind = KINDS[type(value)]
    if isinstance(value, dict):
        return f"{kind} with the fields {', '.join(list(value)[:5])}; make the text a field of the record itself"
    if isinstance(value, list):
        return f"{kind}; write one record for each text of the list"
    return f"{kind} ({json.dumps(value)}); write it in quotes, or leave the record out"
