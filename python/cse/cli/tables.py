"""Writes the tables that commands produce, as .csv or .jsonl files, record by record."""

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
    """Raises ``InputError`` if a table cannot be written to this path; None stands for no path."""
    if output is None:
        return
    if Path(output).suffix not in FORMATS:
        raise InputError(f"-o {output}: the name must end in {' or '.join(FORMATS)}")
    if not Path(output).absolute().parent.is_dir():
        raise InputError(f"-o {output}: its folder does not exist")


def write_table(output: str, names: Sequence[str], records: Iterable[Sequence[Any]]) -> None:
    """Writes records atomically, one at a time, to a path that ``check_table`` accepts.

    Args:
        output: The path.
        names: The columns.
        records: Values in the order of the columns.
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
