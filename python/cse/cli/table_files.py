"""Writes the tables that commands produce, as .csv or .jsonl files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import InputError
from ..io import dumps, write_atomically

__all__ = ["check_table", "write_table"]

FORMATS = (".csv", ".jsonl")


def check_table(output: str | None) -> None:
    """Raises ``InputError`` unless ``output`` is None, or the path of a .csv or .jsonl file in an existing folder."""
    if output is None:
        return
    if Path(output).suffix not in FORMATS:
        raise InputError(f"-o {output}: the name must end in {' or '.join(FORMATS)}")
    if not Path(output).absolute().parent.is_dir():
        raise InputError(f"-o {output}: its folder does not exist; create it first")


def write_table(output: str, names: Sequence[str], records: Iterable[Sequence[Any]]) -> None:
    """Writes records one at a time to a temporary file, which then replaces ``output``.

    Args:
        output: A path that ``check_table`` accepts.
        names: The names of the columns.
        records: The values of each record, in the order of ``names``.
    """

    def write(file: BinaryIO) -> None:
        text = io.TextIOWrapper(file, encoding="utf8", newline="")
        try:
            if Path(output).suffix == ".jsonl":
                for record in records:
                    text.write(dumps(dict(zip(names, record, strict=True))) + "\n")
            else:
                table = csv.writer(text, lineterminator="\n")
                table.writerow(names)
                table.writerows(records)
        finally:
            text.detach()  # writes what is buffered, and leaves the file open

    write_atomically(output, write)
