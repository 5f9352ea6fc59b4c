"""Finds the first faulty record of a .jsonl file, because pyarrow reports neither its line nor its content."""

from __future__ import annotations

import io
import json
from typing import Any

__all__ = ["first_fault"]

KINDS = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}


class _Twice(ValueError):
    """Raised for a record in which the field ``column`` occurs twice."""


def first_fault(path: str, column: str) -> str | None:
    """Returns a message about the first faulty record, with its line number.

    A record is faulty if it is not a JSON object, or if its field ``column`` occurs twice or is neither text nor
    null. Returns None if there is no such record, or if the file cannot be read.
    """
    import pyarrow as pa

    def record(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if sum(name == column for name, _ in pairs) > 1:
            raise _Twice
        return dict(pairs)

    try:
        with io.BufferedReader(pa.input_stream(path)) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    found = json.loads(line.decode("utf-8-sig", errors="replace"), object_pairs_hook=record)
                except _Twice:
                    return f"line {number}: the record has the field {column!r} twice; remove one"
                except ValueError:
                    found = None
                if not isinstance(found, dict):
                    return f"line {number} is not a JSON object; .jsonl holds one on each line"
                if (value := found.get(column)) is not None and not isinstance(value, str):
                    return f"line {number}: column {column!r} must be text, got {_described(value)}"
    except (OSError, pa.ArrowException):
        return None
    return None


def _described(value: Any) -> str:
    kind = KINDS[type(value)]
    if isinstance(value, dict):
        return f"{kind} with the fields {', '.join(list(value)[:5])}; make the text a field of the record itself"
    if isinstance(value, list):
        return f"{kind}; write one record for each text of the list"
    return f"{kind} ({json.dumps(value)}); write it in quotes, or leave the record out"
