"""Reads all columns of a table, and writes tables (.csv, .jsonl, .parquet), one row after the other."""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from ..errors import InputError, first_line
from ..io import dumps, write_atomically
from . import tables

WRITTEN = (".csv", ".jsonl", ".parquet")
BLOCK = 1024  # rows of a Parquet batch


@dataclass(frozen=True)
class Table:
    """The rows of a table, with the types of its format, which can be read several times."""

    names: list[str]
    rows: Callable[[], Iterator[Sequence[Any]]]
    schema: Any = None
    """The types of the columns of a .parquet file; None: of others."""

    @classmethod
    def open(cls, path: str, max_line_bytes: int = tables.MAX_LINE_BYTES) -> Table:
        """Opens a table. All records of a .jsonl file are read for the names of its fields."""
        most = max(tables.MOST, max_line_bytes)
        if tables.is_parquet(path):
            import pyarrow.parquet as pq

            with tables.naming(path):
                schema = pq.read_schema(path)

            def batches() -> Iterator[Sequence[Any]]:
                with tables.naming(path):
                    for batch in pq.ParquetFile(path, page_checksum_verification=True).iter_batches(BLOCK):
                        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

            return cls(schema.names, batches, schema)
        if tables.has_header_line(path):

            def fields() -> Iterator[Sequence[Any]]:
                with tables.naming(path):
                    yield from (record for _, record in islice(tables.csv_records(path, most=most), 1, None))

            return cls(tables.column_names(path, most=most), fields)

        def objects() -> Iterator[dict[str, Any]]:
            with tables.naming(path):
                yield from (record for _, record in tables.json_records(path, most))

        names = list(dict.fromkeys(name for record in objects() for name in record))
        return cls(names, lambda: ([record.get(name) for name in names] for record in objects()))

    def with_columns(self, added: dict[str, Any], values: Callable[[], Iterator[Sequence[Any]]]) -> Table:
        """Returns the table with further columns, ``{name: type of pyarrow}``, whose rows ``values`` yields."""
        import pyarrow as pa

        schema = self.schema
        if schema is not None:
            for name, kind in added.items():
                schema = schema.append(pa.field(name, kind))

        def joined() -> Iterator[Sequence[Any]]:
            for row, more in zip(self.rows(), values(), strict=True):
                yield [*row, *more]

        return Table([*self.names, *added], joined, schema)


def write_table(output: str | Path, names: Sequence[str], records: Iterable[Sequence[Any]]) -> int:
    """Writes records to a .csv or .jsonl file, one at a time, atomically; returns their number. Lists and objects in a
    .csv file are JSON."""
    count = 0

    def write(file: BinaryIO) -> None:
        nonlocal count
        text = io.TextIOWrapper(file, encoding="utf8", errors=ESCAPED, newline="")
        try:
            as_json, table = Path(output).suffix == ".jsonl", csv.writer(_Lines(text), lineterminator="\r\n")
            if not as_json:
                table.writerow(names)
            for count, record in enumerate(records, 1):  # noqa: B007
                if as_json:
                    text.write(dumps(dict(zip(names, map(_plain, record), strict=True))) + "\n")
                else:
                    table.writerow(_cell(value) for value in record)
        finally:
            text.detach()  # writes what is buffered, and leaves the file open

    write_atomically(output, write)
    return count


class _Lines:
    """The file of a ``csv.writer`` that quotes fields with any line break, which it does not if records end in a line
    feed alone, as they do in the file."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, record: str) -> int:
        return self.file.write(record.removesuffix("\r\n") + "\n")


def _escaped(error: UnicodeError) -> tuple[bytes, int]:
    """Encodes lone surrogates: bytes that were read with ``surrogateescape``, or halves of characters as U+FFFD."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    marks = (bytes([ord(each) - 0xDC00]) if 0xDC80 <= ord(each) <= 0xDCFF else b"\xef\xbf\xbd" for each in text)
    return b"".join(marks), error.end


ESCAPED = "cse-surrogates"
codecs.register_error(ESCAPED, _escaped)


def _text(value: Any) -> str:
    """Returns a value that JSON does not have as text: bytes of a .parquet file, or a date."""
    return value.decode("utf8", "replace") if isinstance(value, bytes) else str(value)


def _plain(value: Any) -> Any:
    """Returns a value with types that JSON has."""
    if isinstance(value, (list, dict)):
        return json.loads(json.dumps(value, default=_text))
    return value if value is None or isinstance(value, (str, bool, int, float)) else _text(value)


def _cell(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False, default=_text)
    return _text(value) if isinstance(value, bytes) else value


def check_written(table: Table, output: str) -> None:
    """Raises ``InputError`` if a .jsonl file would not keep all columns, or a .parquet file cannot hold them."""
    names = table.names
    if output.endswith(".jsonl") and len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise InputError(f"-o {output}: the table has {names.count(name)} columns named {name!r}; rename all but one")
    if output.endswith(".parquet"):
        with _typing(output):
            _schema(table)


@contextmanager
def _typing(output: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    # UnicodeError: bytes that are not UTF-8; OverflowError: an integer of more than 64 bits
    except (pa.ArrowException, UnicodeError, OverflowError) as error:
        why = f"a column cannot have one type of Parquet ({first_line(error)})"
        raise InputError(f"-o {output}: {why}; write a .jsonl file") from None


def _blocks(table: Table, schema: Any = None) -> Iterator[Any]:
    import pyarrow as pa

    rows = table.rows()
    while block := list(islice(rows, BLOCK)):
        columns = [list(column) for column in zip(*block, strict=True)]
        yield pa.table(columns, schema=schema) if schema else pa.table(columns, names=table.names)


def _schema(table: Table) -> Any:
    """Returns the types of the columns of a table in a .parquet file."""
    import pyarrow as pa

    if table.schema is not None:
        return table.schema
    found = [each.schema for each in _blocks(table)] or [pa.schema([])]
    return pa.unify_schemas(found, promote_options="permissive")


def write(table: Table, output: str) -> int:
    """Writes a table to a file of the format of its suffix, and returns the number of rows. Columns of a .csv file
    become text in a .parquet file; those of a .jsonl file must have one type."""
    if not output.endswith(".parquet"):
        return write_table(output, table.names, table.rows())
    import pyarrow.parquet as pq

    count = 0

    def to_file(file: BinaryIO) -> None:
        nonlocal count
        with _typing(output):
            schema = _schema(table)
            with pq.ParquetWriter(file, schema) as writer:
                for each in _blocks(table, schema):
                    writer.write_table(each)
                    count += len(each)

    write_atomically(output, to_file)
    return count
