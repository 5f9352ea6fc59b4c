"""Expands patterns and addresses of files, and finds the columns of tables; the options for reading files.

All code that reads a corpus uses this module, so a row has the same number in the index, in training and in outputs.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

from ..errors import InputError, first_line
from .entries import cache_folder, open_entry
from .tables import BLOCK_BYTES, MAX_LINE_BYTES, TABLES, Column, is_table, open_stream


class ReadOptions(TypedDict, total=False):
    """Options for reading the files of a corpus."""

    encoding_errors: str
    """``strict`` (default): invalid UTF-8 raises ``InputError``. ``replace``: invalid bytes become U+FFFD, and the rows
    that contain them are counted."""
    max_line_bytes: int
    """Maximum length of a row in bytes; a longer row raises ``InputError``. Default: 2**20."""
    threads: int
    """Number of threads. Default: 0, all cores. It does not affect the results."""


@dataclass(frozen=True)
class SourceFile:
    """One file of a corpus, as it was read; size and 128-bit XXH3 hash describe the stored file."""

    path: str
    bytes: int
    rows: int
    xxh3: str
    column: str | None = None
    """Column of a table; None for a text file."""


def repeated(files: Iterable[SourceFile]) -> str:
    """Returns which file has the content of another one, so that its rows count twice; "" if there is none."""
    first: dict[tuple[str, str | None], str] = {}
    again = []
    for file in files:
        key = (file.xxh3, file.column)
        if key in first:
            again.append(f"{file.path} has the content of {first[key]}, and its rows count again")
        elif file.rows:
            first[key] = file.path
    more = f"; so have {len(again) - 1:,} more files that of another" if again[1:] else ""
    return again[0] + more if again else ""


def reading_options(
    encoding_errors: str = "strict", max_line_bytes: int = MAX_LINE_BYTES, threads: int = 0
) -> ReadOptions:
    return {"encoding_errors": encoding_errors, "max_line_bytes": max_line_bytes, "threads": threads}


Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

# Suffixes of files that are not read, and what to do instead.
UNREADABLE = {
    **dict.fromkeys((".xlsx", ".xls", ".ods"), "is a spreadsheet; save it as CSV in UTF-8"),
    ".xz": "is compressed with xz, which is not supported; decompress it (xz -d)",
    ".zip": "is a zip archive; unpack it (unzip)",
    ".arrow": "is an Arrow file, which is not read; write it as Parquet (datasets: Dataset.to_parquet)",
    ".json": ".json is not supported; write one object per line (jq -c '.[]') to a .jsonl file",
}
SAMPLE = "sample"
"""Name of the corpus that is installed with cse: 10,000 sentences of Wikipedia."""


def resolve(paths: Paths, column: str | None = None, flag: str = "--column") -> list[str | Column]:
    """Returns the inputs in order: the path of each text file, and a ``Column`` for each table.

    A pattern (``*``, ``?``, ``[]``, ``**``) that is not the name of a file is replaced by the files it matches, sorted
    by name. fsspec reads an address (``s3://...``). ``sample``, if there is no such file, is the installed corpus.
    """
    names = expand(paths)
    inputs: list[str | Column] = [Column(name, column, flag) if is_table(name) else name for name in names]
    if column is not None and not any(isinstance(item, Column) for item in inputs):
        raise InputError(f"{flag} {column}: none of the files is a table ({', '.join(TABLES)})")
    return inputs


def expand(paths: Paths) -> list[str]:
    """Returns the paths of files, with patterns replaced by the files they match; see ``resolve``."""
    patterns = [paths] if isinstance(paths, (str, PathLike)) else list(paths)
    if not patterns:
        raise InputError("corpus: no file was given; name one, or a pattern")
    names = [name for path in patterns for name in _matches(find_again(fspath(path)))]
    for name in names:
        suffix = os.path.splitext(name.lower().removesuffix(".gz").removesuffix(".zst"))[1]
        if suffix in UNREADABLE:
            raise InputError(f"{name}: {UNREADABLE[suffix]}")
    return names


def joined_lines(inputs: Sequence[str | Column]) -> int:
    """Returns the number of fields read so far in which a line break was replaced by a space."""
    return sum(item.line_breaks for item in inputs if isinstance(item, Column))


def first_rows(inputs: Sequence[str | Column], count: int) -> list[str]:
    """Returns rows from the beginning of each of the inputs, none of which has been read, at most ``count`` in all.

    A pipe, which can be read once, gives none.
    """
    rows: list[str] = []
    for item in inputs[:count]:
        if isinstance(item, Column):
            block = (item.next_block(2**40) or (b"", 0))[0]
        elif os.path.isfile(item):
            with open_stream(item) as file:
                block = file.read(BLOCK_BYTES)
        else:
            continue
        rows += block.decode("utf8", "replace").splitlines()[: -(-count // len(inputs))]
    return rows[:count]


def find_again(path: str) -> str:
    """Returns the path of a file whose name was stored with U+FFFD in place of bytes that are not UTF-8."""
    if "\ufffd" not in path or os.path.exists(path):
        return path
    folder, name = os.path.split(path)
    folder = find_again(folder)
    if not os.path.isdir(folder or "."):
        return path
    alike = [entry for entry in os.listdir(folder or ".") if os.fsencode(entry).decode("utf8", "replace") == name]
    return os.path.join(folder, alike[0]) if len(alike) == 1 else path


def _matches(path: str) -> list[str]:
    if "://" in path:
        return local_copies(path)
    if path == SAMPLE and not os.path.exists(path):
        return [str(Path(__file__).parents[1] / "resources" / "sample.txt")]
    if os.path.isdir(path):
        raise is_folder(path)
    if not glob.has_magic(path) or os.path.exists(path):
        return [path]
    files = sorted(name for name in glob.glob(path, recursive=True) if not os.path.isdir(name))
    if not files:
        raise InputError(f"{path}: no file matches; check the pattern, and the folder it starts from")
    return files


# What file systems tell of a file besides its size, its ETag or hash, and times; a redirection may differ each time.
NO_VERSION = ("name", "type", "url", "mimetype", "partial")
STARTED = f"{os.getpid()} {time.time_ns()}"


def local_copies(address: str) -> list[str]:
    """Returns the paths of copies in the cache of the files at an address, sorted by name if it is a pattern.

    Files are copied whole before they are read, because tables are read several times.
    """
    for part in map(urlsplit, address.split("::")):
        names_user = "@" in part.netloc and part.scheme not in ("abfs", "abfss")  # which name a container so
        if names_user or (part.query and part.scheme in ("http", "https")):
            raise InputError(
                f"{part.scheme}://{part.netloc.rpartition('@')[2]}: the address holds a user name, a password or a "
                "query, which would be stored with the results; set them in the configuration of fsspec, or download "
                "the file"
            )
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise InputError(f"{address}: needs fsspec; pip install fsspec, or name a local file") from None
    try:
        files, root = url_to_fs(address)
        files.invalidate_cache()  # lists of files that were made earlier in this process
        pattern = glob.has_magic(root) and not files.exists(root)
        found = files.glob(root, detail=True) if pattern else {}
        names = sorted(name for name, about in found.items() if about["type"] != "directory") if pattern else [root]
        if not names:
            raise FileNotFoundError("no file matches")
        if names == [root] and files.isdir(root):
            raise is_folder(address)
        return [_copied(files, address, str(name)) for name in names]
    except InputError:
        raise
    except Exception as error:  # each file system has errors of its own
        why = re.sub(r"\?[^\s'\")]+", "", first_line(error)) or type(error).__name__  # signatures in a redirection
        raise InputError(f"{address}: cannot be read ({why}); check the address, and log in where needed") from None


def is_folder(path: str) -> InputError:
    begin, separator, rest = path.rstrip("/").rpartition("://")
    return InputError(f"{path}: is a folder; name the files in it, like '{begin}{separator}{glob.escape(rest)}/*.txt'")


def _copied(files: Any, address: str, name: str) -> str:
    about = {key: value for key, value in files.info(name).items() if key not in NO_VERSION and value is not None}
    told = str(about) if about else STARTED
    file = re.sub(r"[^\w.-]", "_", name.rstrip("/").rpartition("/")[2])

    def copy(folder: Path) -> dict[str, Any]:
        files.get_file(name, str(folder / file))
        return {}

    key = {"address": address, "name": name, "version": hashlib.sha256(told.encode()).hexdigest()}
    # The entry is not held: one open file for each of thousands of shards would exceed the limit of the process.
    return str(open_entry(cache_folder(), "files", key, copy).folder / file)
