"""Decodes the columns of tables (csv, tsv, jsonl, Parquet) into rows, and the records of csv and jsonl files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from ..errors import InputError, first_line, shortened
from ..io import repaired

MAX_LINE_BYTES = 1 << 20
# Beginnings of files that are not tables of text, whatever their name says.
FOREIGN = {
    b"PK\x03\x04": "is a spreadsheet or a zip archive, not a table of text; save it as CSV in UTF-8",
    b"\x1f\x8b": "is gzip data; end its name in .gz",
    b"PAR1": "is a Parquet file; end its name in .parquet",
}
TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
"""Names of the decoders of pyarrow by suffix in lower case."""
BLOCK_BYTES = 1 << 22
MOST = 16 * BLOCK_BYTES
"""Largest size of a record, unless rows may be larger."""
# Number of records of a .jsonl file that are read for the names of columns.
RECORDS = 10_000
END = "\0END"
"""A line that is read after the last one of a csv file: if it is part of a field, a quote was not closed."""


def is_table(path: str) -> bool:
    return _kind(path) is not None


def has_header_line(path: str) -> bool:
    return _kind(path) in (".csv", ".tsv")


def is_parquet(path: str) -> bool:
    return _kind(path) == ".parquet"


def _kind(path: str) -> str | None:
    stem, suffix = os.path.splitext(path.lower())
    if suffix in COMPRESSED:
        suffix = os.path.splitext(stem)[1]
    return suffix if suffix in TABLES else None


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Context manager in which errors of pyarrow and of the file system name the table."""
    import pyarrow as pa

    try:
        yield
    # overflow: a year above 9999; EOFError: a .gz file without its end
    except (pa.ArrowException, OSError, EOFError, zlib.error, UnicodeError, OverflowError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), path) from None
        why = first_line(error).rstrip(".")
        raise InputError(f"{path}: cannot be read as a table ({why}); check its format") from None


def open_stream(path: str) -> Any:
    import pyarrow as pa

    kind = COMPRESSED.get(os.path.splitext(path.lower())[1])
    if kind == "gzip":  # pyarrow refuses the zeros with which tapes and block devices pad a file
        return io.BufferedReader(gzip.GzipFile(path), 1 << 20)
    return pa.input_stream(path, compression=kind)


def _lines(path: str, newline: str, most: int) -> Iterator[str]:
    with io.TextIOWrapper(open_stream(path), "utf-8-sig", "surrogateescape", newline=newline) as file:
        while line := file.readline(most + 1):
            if len(line) > most:
                raise _too_long(path, most)
            yield line


def _too_long(path: str, most: int) -> InputError:
    return InputError(f"{path}: a record is longer than {most:,} bytes; check its quotes, or raise --max-line-bytes")


def csv_records(path: str, lines: Iterable[str] | None = None, most: int = MOST) -> Iterator[tuple[int, list[str]]]:
    """Yields the first line and the fields of each record of a csv or tsv file; empty lines are skipped.

    Fields of a csv file may be quoted. ``lines`` are the lines of the file, if they were read before.
    """
    csv.field_size_limit(min(most, 2**31 - 1))
    form: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if _kind(path) == ".tsv" else {}
    records, begin = csv.reader(chain(_lines(path, "", most) if lines is None else lines, [END]), **form), 1
    try:
        for fields in records:
            if fields == [END]:
                return
            if fields:
                if fields[-1].endswith(END):
                    raise InputError(f"{path}: a quote in the record at line {begin} is never closed; check that line")
                yield begin, fields
            begin = records.line_num + 1
    except csv.Error as error:
        if "limit" in str(error):
            raise _too_long(path, most) from None
        raise InputError(f"{path}: the record at line {begin} cannot be read ({error}); check that line") from None


def json_records(path: str, most: int = MOST) -> Iterator[tuple[int, dict[str, Any]]]:
    decode = json.JSONDecoder().raw_decode  # half the time of json.loads
    for number, line in enumerate(_lines(path, "\n", most), start=1):
        if line := line.strip(" \t\r\n"):
            try:
                record, end = decode(line)
            except (ValueError, RecursionError):
                record, end = None, 0
            if not isinstance(record, dict) or end < len(line):
                raise InputError(f"{path}: line {number} is not a JSON object; .jsonl holds one on each line")
            yield number, record


def column_names(path: str, wanted: str | None = None, most: int = MOST) -> list[str]:
    """Returns the names of the columns of a table; ``wanted`` is looked for in all records of a .jsonl file."""
    if not is_table(path):
        raise InputError(f"{path}: is not a table; give one of {', '.join(TABLES)}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: is not a regular file, but a table is read several times; write it to a file first")
    with naming(path):
        if _kind(path) == ".parquet":
            import pyarrow.parquet as pq

            return list(pq.read_schema(path).names)
        with open_stream(path) as stream:
            head = stream.read(4)
        fault = next((what for begin, what in FOREIGN.items() if head.startswith(begin)), "")
        if b"\0" in head:
            name = ("UTF-32" if head.count(0) == 3 else "UTF-16") + ("BE" if head[:1] in (b"\0", b"\xfe") else "LE")
            fault = f"is {name}, not UTF-8; convert it (iconv -f {name} -t UTF-8)"
        if fault:
            raise InputError(f"{path}: {fault}")
        if has_header_line(path):
            (_, names), (_, first) = (*islice(csv_records(path, most=most), 2), (1, []), (2, []))[:2]
            if repaired("".join(names)) != "".join(names):
                raise InputError(
                    f"{path}: the names of its columns are not UTF-8; convert it (often iconv -f WINDOWS-1252 -t UTF-8)"
                )
            sign = next((sign for sign in ";\t|" if len(names) == 1 and sign in names[0]), None)
            if _kind(path) == ".csv" and sign and sign in ",".join(first):
                name = {"\t": "a tab"}.get(sign, repr(sign))
                raise InputError(
                    f"{path}: its columns are separated by {name}, not by a comma; save it with commas, or as a .tsv "
                    "file with tabs"
                )
            return names
        fields: dict[str, None] = {}
        for _, record in islice(json_records(path, most), RECORDS if wanted is None else None):
            fields.update(dict.fromkeys(record))
            if wanted in fields:
                break
        return list(fields)


def plain_columns(path: str) -> list[str]:
    """Returns the names of the columns of a table, of a .parquet file only with text, integers or truth values."""
    if _kind(path) != ".parquet":
        return column_names(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    with naming(path):
        schema = pq.read_schema(path)
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_dictionary,
    )
    return [field.name for field in schema if any(test(field.type) for test in tests)]


def _cells(path: str, column: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[tuple[int, Any]]:
    """Yields the value of a column in each record, with the line of a csv, tsv or jsonl file, else the row."""
    most = max(MOST, max_line_bytes)
    with naming(path):
        if _kind(path) == ".parquet":
            yield from enumerate(_parquet(path, column), 1)
            return
        if not has_header_line(path):
            yield from ((line, record.get(column)) for line, record in json_records(path, most))
            return
        records = csv_records(path, most=most)
        names = next(records, (1, []))[1]
        place = names.index(column)
        for line, fields in records:
            if len(fields) != len(names):
                raise InputError(
                    f"{path}: the record at line {line} has {len(fields)} fields, but the first line names "
                    f"{len(names)} columns; check that line"
                )
            yield line, fields[place]


def _parquet(path: str, column: str) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, page_checksum_verification=True)
    kind = file.schema_arrow.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_text = kind in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary())
    # Few rows at a time, since a value that is repeated in all of them takes a few bytes in the file.
    for batch in file.iter_batches(batch_size=1024, columns=[column]):
        values = batch.column(column)
        if is_text:
            texts = values.cast(pa.large_binary()).to_pylist()
            yield from (None if text is None else text.decode("utf8", "surrogateescape") for text in texts)
        else:
            yield from values.to_pylist()


def _bytes(text: str) -> bytes:
    try:  # bytes of a file that were decoded with ``surrogateescape``
        return text.encode("utf8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf8", "surrogatepass")


def column_values(path: str, column: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yields the values of a column of any type as text, one per row; "" for a missing value."""
    yield from map(as_text, raw_values(path, column, max_line_bytes))


def raw_values(path: str, column: str, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Any]:
    """Yields the values of a column, one per row, with the types that the format of the table has."""
    for _, value in _cells(path, column, max_line_bytes):
        yield value


def as_text(value: Any) -> str:
    """Returns a value of a table as text; "" for None."""
    return "" if value is None else _bytes(str(value)).decode("utf8", "replace")


def lines_of(texts: Sequence[str]) -> tuple[str, int]:
    """Returns texts as lines, and the number of texts in which a line break was replaced by a space."""
    text = "\n".join([*texts, ""])
    if "\r" not in text and text.count("\n") == len(texts):
        return text, 0
    joined = sum("\n" in each or "\r" in each for each in texts)
    return "\n".join([*(re.sub("\r\n|\n|\r", " ", each) for each in texts), ""]), joined


class Column:
    """A column of a csv, tsv, jsonl or parquet file, which is decoded in blocks.

    A missing value becomes a blank row; a line break inside a field is replaced by a space. Quotes in a tsv file have
    no special meaning.
    """

    def __init__(self, path: str, column: str | None, flag: str = "--column") -> None:
        names = column_names(path, column)
        first = dict.fromkeys(shortened(name, 60) for name in names[:20])
        listed = ", ".join(first) + (", ..." if len(names) > 20 else "")
        if column is None:
            raise InputError(f"{path}: is a table; use {flag} to name the column that holds the sentences: {listed}")
        if column not in names:
            raise InputError(f"{path}: has no column {column!r}; its columns are: {listed or 'none, it has no record'}")
        if names.count(column) > 1:
            raise InputError(f"{path}: has {names.count(column)} columns named {column!r}; rename all but one")
        self.path, self.column = path, column
        self.line_breaks = 0
        """Number of fields read so far that contain a line break."""
        self._size = os.path.getsize(path)
        self._reported = 0
        self._blocks: Iterator[list[str]] | None = None

    def next_block(self, max_line_bytes: int = MAX_LINE_BYTES) -> tuple[bytes, int] | None:
        """Returns the next rows, each ended by a line feed, and their approximate size in the file; None at the end."""
        self._blocks = self._blocks or self._read(max_line_bytes)
        texts = next(self._blocks, None)
        if texts is None:
            rest, self._reported = self._size - self._reported, self._size
            return (b"", rest) if rest > 0 else None
        lines, joined = lines_of(texts)
        text = _bytes(lines)
        self.line_breaks += joined
        stored = min(len(text), self._size - self._reported)
        self._reported += stored
        return text, stored

    def _read(self, max_line_bytes: int) -> Iterator[list[str]]:
        """Yields the rows in blocks of at most ``BLOCK_BYTES``, or of one row."""
        block: list[str] = []
        size = 0
        for line, value in _cells(self.path, self.column, max_line_bytes):
            text = "" if value is None else value
            if not isinstance(text, str):
                place = f"{'row' if _kind(self.path) == '.parquet' else 'line'} {line}"
                raise InputError(f"{self.path}: {place}: column {self.column!r} must be text, got {_shown(value)}")
            size += len(text)
            if size > BLOCK_BYTES and block:
                yield block
                block, size = [], len(text)
            block.append(text)
        yield block


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with the fields {', '.join(list(value)[:5])}; make the text a field of the record itself"
    if isinstance(value, list):
        return "a list; write one record for each text of the list"
    kinds = {bool: "a boolean", int: "a number", float: "a number"}
    kind = kinds.get(type(value), f"a value of type {type(value).__name__}")
    return f"{kind} ({json.dumps(value, default=str)}); write it as text, or omit the record"
