"""Decodes the columns of tables (csv, tsv, jsonl, Parquet) into rows.

The faulty record of a .jsonl file is found here, because pyarrow does not report its line and content.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

from ..errors import InputError, first_line

MAX_LINE_BYTES = 1 << 20


UTF16 = "is UTF-16, not UTF-8; convert it (iconv -f UTF-16 -t UTF-8)"


# Beginnings of files that are not tables in UTF-8, whatever their name says.
FOREIGN = {
    b"\xff\xfe": UTF16,
    b"\xfe\xff": UTF16,
    b"PK\x03\x04": "is a spreadsheet or a zip archive, not a table of text; save it as CSV in UTF-8",
    b"\x1f\x8b": "is gzip data; end its name in .gz",
    b"PAR1": "is a Parquet file; end its name in .parquet",
}


TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


COMPRESSED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
"""Names of the decoders of pyarrow by suffix in lower case."""


BLOCK_BYTES = 1 << 22


RECORDS = 10_000


def is_table(path: str) -> bool:
    """Returns whether a path has the suffix of a table format, ignoring a compression suffix."""
    return _kind(path) is not None


def has_header_line(path: str) -> bool:
    """Returns whether the first line of a table names its columns, as in csv and tsv files."""
    return _kind(path) in (".csv", ".tsv")


def column_names(path: str, wanted: str | None = None) -> list[str]:
    """Returns the names of the columns of a table; raises ``InputError`` if it cannot be read.

    ``wanted`` is a column that is looked for in all records of a .jsonl file.
    """
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file; check the path")
    if not os.path.isfile(path):
        raise InputError(f"{path}: is not a regular file, but a table is read several times; write it to a file first")
    names: list[str] = _guarded(path, lambda: _column_names(path, wanted))
    return names


def open_stream(path: str) -> Any:
    """Opens a file with pyarrow; its suffix, in any case, selects the decoder."""
    import pyarrow as pa

    return pa.input_stream(path, compression=COMPRESSED.get(os.path.splitext(path.lower())[1]))


def column_values(path: str, column: str) -> Iterator[str]:
    """Yields the values of a column of any type as text, one per row; "" for a missing value.

    Raises ``InputError`` if the table cannot be read.
    """
    values: Iterator[Any]
    if _kind(path) in (".jsonl", ".ndjson"):
        values = (record.get(column) for _, record in json_records(path))
    else:
        values = (value for batch in _blocks(path, column, column) for value in batch.column(column).to_pylist())
    end = object()
    while (value := _guarded(path, lambda: next(values, end))) is not end:
        yield value.decode("utf8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)


def _check_quotes(path: str) -> None:
    """Raises ``InputError`` if a quoted field of a csv file is not closed.

    pyarrow silently reads the rest of the file as part of such a field. The whole file is therefore checked, but only
    if the last field that pyarrow returned contains a line break.
    """
    import csv

    csv.field_size_limit(2**31 - 1)
    with io.TextIOWrapper(open_stream(path), encoding="utf8", errors="replace", newline="") as lines:
        records = csv.reader(lines, strict=True)
        begin = 1
        try:
            for _ in records:
                begin = records.line_num + 1
        except csv.Error:
            raise InputError(
                f"{path}: a quote in the record at line {begin} is never closed; check that line"
            ) from None


def _kind(path: str) -> str | None:
    """Returns the suffix of a table format, ignoring a compression suffix; None for other files."""
    stem, suffix = os.path.splitext(path.lower())
    if suffix in COMPRESSED:
        suffix = os.path.splitext(stem)[1]
    return suffix if suffix in TABLES else None


class Column:
    """A column of a csv, tsv, jsonl or parquet file, which pyarrow decodes in blocks.

    A missing value becomes a blank row; a line break inside a field is replaced by a space. Fields of a csv file may be
    quoted, and quoted fields may contain line breaks; quotes in a tsv file have no special meaning. The first line of a
    csv or tsv file names the columns, and empty lines are not rows.
    """

    def __init__(self, path: str, column: str | None, flag: str = "--column") -> None:
        names = column_names(path, column)
        listed = ", ".join(dict.fromkeys(names[:20])) + (", ..." if len(names) > 20 else "")
        if column is None:
            raise InputError(f"{path}: is a table; use {flag} to name the column that holds the sentences: {listed}")
        if column not in names:
            raise InputError(f"{path}: has no column {column!r}; its columns are: {listed}")
        if names.count(column) > 1:
            raise InputError(f"{path}: has {names.count(column)} columns named {column!r}; rename all but one")
        self.path, self.column = path, column
        self.line_breaks = 0
        """Number of fields read so far that contain a line break."""
        self._size = os.path.getsize(path)
        self._reported = 0
        # If the last field of a record has an unclosed quote, the rest of the file becomes part of that field. In any
        # other field, an unclosed quote leaves the record with too few fields, which pyarrow reports.
        self._last = (names[-1] if names.count(names[-1]) == 1 else column) if _kind(path) == ".csv" else None
        self._ends_in_line_break = False
        self._blocks: Iterator[Any] | None = None

    def next_block(self, max_line_bytes: int = MAX_LINE_BYTES) -> tuple[bytes, int] | None:
        """Returns the next rows, each ended by a line feed, and their approximate size in the file; None at the end.

        At most ``BLOCK_BYTES`` of rows are decoded at a time, or one row. Raises ``InputError`` for a row that must be
        longer than ``max_line_bytes``, and for a record of a csv or jsonl file that is much longer.
        """
        if self._blocks is None:
            self._blocks = _blocks(self.path, self.column, self._last, max_line_bytes)
        blocks = self._blocks
        batch = _guarded(self.path, lambda: next(blocks, None))
        if batch is None:
            if self._ends_in_line_break:
                _check_quotes(self.path)
            rest, self._reported = self._size - self._reported, self._size
            self._blocks = iter(())
            return (b"", rest) if rest > 0 else None
        text, joined = _guarded(self.path, lambda: _rows(batch.column(self.column), self.column))
        if self._last is not None and len(batch):
            self._ends_in_line_break = b"\n" in (batch.column(self._last)[-1].as_py() or b"")
        self.line_breaks += joined
        stored = min(len(text), self._size - self._reported)
        self._reported += stored
        return text, stored


def _guarded(path: str, work: Callable[[], Any]) -> Any:
    """Calls ``work``, and converts an error of pyarrow to an ``InputError`` that starts with the path."""
    import pyarrow as pa

    try:
        return work()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, os.strerror(error.errno), path) from None
        why = first_line(error).rstrip(".")
        raise InputError(f"{path}: cannot be read as a table ({why}); check its format") from None


def _column_names(path: str, wanted: str | None) -> list[str]:
    import pyarrow as pa

    kind = _kind(path)
    with open_stream(path) as stream:
        head = stream.read(4) if kind != ".parquet" else b""
    for begin, what in FOREIGN.items():
        if head.startswith(begin):
            raise InputError(f"{path}: {what}")
    if b"\0" in head:  # without a byte order mark
        name = ("UTF-32" if head.count(0) == 3 else "UTF-16") + ("BE" if head[:1] == b"\0" else "LE")
        raise InputError(f"{path}: is {name}, not UTF-8; convert it (iconv -f {name} -t UTF-8)")
    if kind == ".parquet":
        import pyarrow.parquet as pq

        return list(pq.read_schema(path).names)
    if kind in (".csv", ".tsv"):
        header = _header(path)
        names = list(_open_csv(pa.BufferReader(header), kind, None, len(header) + 1).schema.names)
        for separator, remedy in ((";", "write it with commas"), ("\t", "name it .tsv")):
            if kind == ".csv" and len(names) == 1 and separator in names[0] and wanted != names[0]:
                what = "semicolons" if separator == ";" else "tabs"
                raise InputError(f"{path}: its fields are separated by {what}, not by commas; {remedy}")
        return names
    return _json_names(path, wanted)


def _json_names(path: str, wanted: str | None) -> list[str]:
    """Returns the field names of the first 10,000 records, or of all records up to the first with a field ``wanted``.

    One record is not enough, because records may omit empty fields.
    """
    names: dict[str, None] = {}
    for _, record in islice(json_records(path), RECORDS if wanted is None else None):
        names.update(dict.fromkeys(record))
        if wanted in names:
            break
    if not names:
        raise InputError(f"{path}: holds no record; .jsonl holds a JSON object on each line")
    return list(names)


def _blocks(path: str, column: str, last: str | None, max_line_bytes: int = MAX_LINE_BYTES) -> Iterator[Any]:
    """Yields record batches with the column ``column`` and, for csv files, the column ``last``."""
    import pyarrow as pa

    kind, done = _kind(path), 0
    if kind == ".parquet":
        yield from _parquet(path, column, max_line_bytes)
        return
    size = BLOCK_BYTES
    while size:
        skip, lines = done, kind in (".jsonl", ".ndjson")
        columns = list(dict.fromkeys([column, last or column]))
        try:
            for batch in _open_json(path, column, size) if lines else _open_csv(open_stream(path), kind, columns, size):
                rest = batch.slice(min(skip, len(batch)))
                skip -= len(batch) - len(rest)
                done += len(rest)
                yield rest
            return
        except pa.ArrowInvalid as error:
            size = _larger(size, error, path, max_line_bytes)
            if not size and not lines:
                raise
    # A record that pyarrow does not read: check_records raises for a faulty one. Otherwise it holds half of a
    # surrogate pair; the core reports or replaces it like other bytes that are not UTF-8.
    check_records(path, column)
    records = islice(json_records(path, most=_most(max_line_bytes)), done, None)
    while values := [record.get(column) for _, record in islice(records, RECORDS)]:
        texts = [None if value is None else value.encode("utf8", "surrogatepass") for value in values]
        yield pa.record_batch([pa.array(texts, pa.large_binary())], names=[column])


def _parquet(path: str, column: str, max_line_bytes: int) -> Iterator[Any]:
    """Yields batches of a column whose rows take at most ``BLOCK_BYTES``, or of one row.

    A value that is repeated takes a few bytes in the file. It is therefore read as an entry of a dictionary, which
    holds it once, and its repetitions are cut into batches before they are decoded.
    """
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if not _is_text(pq.read_schema(path).field(column).type):
        yield from pq.ParquetFile(path).iter_batches(columns=[column])
        return
    file = pq.ParquetFile(path, read_dictionary=[column])
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(at) for at in range(group.num_columns)]
        size = sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema == column)
        if size > (max_line_bytes + 64) * (group.num_rows + 1):  # before a page is decompressed
            raise _too_long(path, max_line_bytes)
    for batch in file.iter_batches(columns=[column]):
        values, start = batch.column(column), 0
        lengths = np.append(pc.binary_length(values.dictionary).to_numpy(), 0)  # the last for null
        ends = lengths[values.indices.fill_null(len(lengths) - 1).to_numpy()].cumsum(dtype=np.int64)
        while start < len(batch):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, "right")))
            yield batch.slice(start, stop - start)
            start = stop


def _most(max_line_bytes: int) -> int:
    """Returns the largest size in bytes of a record of a csv or jsonl file, which may have other columns."""
    return max(16 * BLOCK_BYTES, max_line_bytes)


def _too_long(path: str, most: int) -> InputError:
    return InputError(f"{path}: a record is longer than {most:,} bytes; check its quotes, or raise --max-line-bytes")


def _larger(size: int, error: Exception, path: str, max_line_bytes: int) -> int:
    """Returns a larger size of blocks if a record did not fit into one; 0 if that is not the cause.

    Raises ``InputError`` if the record is longer than ``_most``, or than 1 GiB.
    """
    if "straddl" not in str(error):
        return 0
    if size >= (most := min(_most(max_line_bytes), 2**30)):
        raise _too_long(path, most)
    return min(16 * size, most)


def _header(path: str) -> bytes:
    """Returns the first record of a csv or tsv file; a quoted field may contain line breaks."""
    header, most = b"", _most(MAX_LINE_BYTES)
    with io.BufferedReader(open_stream(path)) as lines:
        while line := lines.readline(most + 1):
            header += line
            if len(header) > most:
                raise _too_long(path, most)
            if header.strip() and (_kind(path) == ".tsv" or header.count(b'"') % 2 == 0):
                break
    return header


def _open_json(path: str, column: str, size: int) -> Any:
    import pyarrow as pa
    import pyarrow.json as pajson

    return pajson.open_json(
        open_stream(path),
        read_options=pajson.ReadOptions(block_size=size),
        parse_options=pajson.ParseOptions(
            explicit_schema=pa.schema([(column, pa.string())]), unexpected_field_behavior="ignore"
        ),
    )


def _open_csv(stream: Any, kind: str | None, columns: list[str] | None, size: int) -> Any:
    import pyarrow as pa
    from pyarrow import csv

    tabs = kind == ".tsv"
    # Read as bytes, not strings, because the Rust core validates UTF-8 and reports the row of an error.
    convert = (
        csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.binary()))
        if columns is not None
        else None
    )
    return csv.open_csv(
        stream,
        read_options=csv.ReadOptions(block_size=size),
        parse_options=csv.ParseOptions(
            delimiter="\t" if tabs else ",", quote_char=False if tabs else '"', newlines_in_values=not tabs
        ),
        convert_options=convert,
    )


def _rows(values: Any, column: str) -> tuple[bytes, int]:
    """Returns the values as lines of bytes, and the number of values in which a line break was replaced by a space."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(values.type) or not len(values):
        return b"\n" * len(values), 0
    if not _is_text(values.type):
        raise pa.ArrowTypeError(f"column {column!r} must be text, got {values.type}")
    texts = values.cast(pa.large_binary())
    # If a block of the file ends between \r and \n, pyarrow reads this line break inside a field as \r.
    joined = pc.sum(pc.or_(pc.match_substring(texts, "\n"), pc.match_substring(texts, "\r"))).as_py() or 0
    if joined:
        for line_break in ("\r\n", "\n", "\r"):
            texts = pc.replace_substring(texts, line_break, " ")
    empty, line_feed = (pa.scalar(text, pa.large_binary()) for text in (b"", b"\n"))
    _, ends, lines = pc.binary_join_element_wise(pc.fill_null(texts, empty), empty, line_feed).buffers()
    return lines[: int.from_bytes(ends[8 * len(texts) : 8 * len(texts) + 8], "little")].to_pybytes(), joined


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    kinds = ("string", "large_string", "string_view", "binary", "large_binary")
    return any(getattr(pa.types, f"is_{name}")(kind) for name in kinds)


KINDS = {dict: "an object", list: "a list", bool: "a boolean", int: "a number", float: "a number"}


TWICE = object()


def json_records(
    path: str, hook: Callable[[list[tuple[str, Any]]], Any] | None = None, most: int = 16 * BLOCK_BYTES
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the line number and the record of each line that is not blank; ``hook`` is passed on to ``json.loads``.

    Raises ``InputError`` for a line that is not a JSON object, or is longer than ``most`` bytes.
    """
    with io.BufferedReader(open_stream(path)) as lines:
        for number, line in enumerate(iter(lambda: lines.readline(most + 1), b""), start=1):
            if len(line) > most:
                raise _too_long(path, most)
            if not line.strip():
                continue
            try:  # the core reports invalid UTF-8
                record = json.loads(line.decode("utf-8-sig", errors="replace"), object_pairs_hook=hook)
            except (ValueError, RecursionError):
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
        for number, fields in json_records(path, record):
            value = fields.get(column)
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
    return f"{kind} ({json.dumps(value)}); write it in quotes, or omit the record"
