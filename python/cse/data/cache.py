"""The cache folder, and rows that are read from its memory-mapped files.

The cache holds rows and token ids of corpora as files that are mapped into memory, so that memory use does not grow
with the corpus. Each entry is a folder with a ``meta.json`` that holds the hash of each file. When an entry is opened,
its files are read once and compared with these hashes, because a run would not notice damaged data. An entry that fails
the check, or has no ``meta.json``, is written again. The name of an entry contains a hash of its key. If an input file
changes, the key changes too, and a new entry is written; the old one remains until ``cse cache --clear``.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .. import _core
from ..background import ProgressCallback, in_thread
from ..errors import InputError
from ..io import (
    check_files,
    dumps,
    fresh_folder,
    hash_files,
    locked,
    naming,
    read_json,
    remove_folder,
    remove_leftovers,
)
from .readers import COMPRESSED, Column, ReadOptions, joined_lines
from .remote import META
from .remote import cache_folder as cache_folder

BLOCK_BYTES = 1 << 20
KINDS = ("rows", "tokens", "files")
# Pattern of the names of entries. Other files in the cache folder are not touched.
NAME = re.compile(f"({'|'.join(KINDS)})-[0-9a-f]{{24}}")


@dataclass(frozen=True)
class Entry:
    """An entry of the cache."""

    folder: Path
    meta: dict[str, Any]
    """``kind``, ``key``, ``xxh3`` (hashes of files) and the values that ``write`` returned; see ``open_entry``."""

    @property
    def kind(self) -> str:
        """Kind of the entry, one of ``KINDS``; known for a damaged entry as well."""
        return self.folder.name.partition("-")[0]

    @property
    def bytes(self) -> int:
        """Size of the files in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())


def find_entry(cache: Path, kind: str, key: dict[str, Any], fits: Callable[[Entry], bool]) -> Entry | None:
    """Returns an existing entry; None if there is none or it is damaged. See ``open_entry``."""
    return _whole(cache / _name(kind, key), fits)


def _name(kind: str, key: dict[str, Any]) -> str:
    return f"{kind}-{hashlib.sha256(dumps(key).encode()).hexdigest()[:24]}"


def open_entry(
    cache: Path,
    kind: str,
    key: dict[str, Any],
    write: Callable[[Path], dict[str, Any]],
    fits: Callable[[Entry], bool],
) -> tuple[Entry, bool]:
    """Opens an entry, and writes it first if it does not exist or is damaged.

    Two processes that need the same entry do not write it twice: the second one waits for the first.

    Args:
        cache: The cache folder; created if it does not exist.
        kind: Kind of the entry, one of ``KINDS``; the name of the entry starts with it.
        key: What the content depends on, serialisable to JSON.
        write: Writes the files to the given folder, and returns the values to add to ``meta.json``.
        fits: Returns whether the files of an entry are consistent; called after their hashes are compared.

    Returns:
        The entry, and whether it was written by this call.

    Raises:
        OSError: If the cache cannot be written.
    """
    name = _name(kind, key)
    folder = cache / name
    if (whole := _whole(folder, fits)) is not None:
        remove_leftovers(cache)  # the lock of a process that was killed after it had written the entry
        return whole, False
    with naming(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):
        if (whole := _whole(folder, fits)) is not None:
            return whole, False
        with fresh_folder(folder) as fresh:
            added = write(fresh)
            record = {"kind": kind, "key": key, "xxh3": hash_files(fresh), **added}
            (fresh / META).write_text(dumps(record) + "\n", encoding="utf8")
    entry = _read(folder)
    assert entry is not None
    return entry, True


def entries(cache: Path) -> list[Entry]:
    """Returns the entries of a cache folder, sorted by name; ``meta`` is empty if ``meta.json`` cannot be read."""
    if not cache.is_dir():
        return []
    folders = [path for path in sorted(cache.iterdir()) if NAME.fullmatch(path.name) and path.is_dir()]
    return [_read(folder) or Entry(folder, {}) for folder in folders]


def clear(cache: Path) -> tuple[int, int]:
    """Deletes all entries, and what killed processes left; returns the number of entries and their size in bytes.

    Other files in the folder are not touched.
    """
    listed = entries(cache)
    size = sum(entry.bytes for entry in listed)
    for entry in listed:
        remove_folder(entry.folder)
    remove_leftovers(cache)
    return len(listed), size


class Meta(TypedDict, total=False):
    """The content of the file of an entry, which other programs may have changed."""

    rows: int | None
    paths: list[str]
    xxh3: dict[str, str]


def _read(folder: Path) -> Entry | None:
    try:
        return Entry(folder, dict(read_json(folder / META, Meta)))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def _whole(folder: Path, fits: Callable[[Entry], bool]) -> Entry | None:
    """Returns the entry of a folder if its files are unchanged since they were written, else None."""
    entry = _read(folder)
    if entry is None:
        return None
    try:
        check_files(folder, entry.meta["xxh3"], entry.meta["xxh3"])
        return entry if fits(entry) else None
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None


def ends_fit(ends: npt.NDArray[np.uint64], rows: int, size: int) -> bool:
    """Returns whether ``ends`` has length ``rows``, never decreases, and has ``size`` as its last element.

    If ``rows`` is 0, ``size`` must be 0.
    """
    if len(ends) != rows or (int(ends[-1]) if rows else 0) != size:
        return False
    # Compared in parts, because each comparison allocates an array.
    parts = (ends[start : start + BLOCK_BYTES + 1] for start in range(0, rows, BLOCK_BYTES))
    return all(bool((part[1:] >= part[:-1]).all()) for part in parts)


IN_MEMORY_BYTES = 64 << 20
"""Files are read into memory if their estimated total size, uncompressed, is smaller than this."""


def _path(file: str | Column) -> str:
    return file if isinstance(file, str) else file.path


def _map(folder: str | Path, name: str, dtype: str) -> Any:
    path = Path(folder) / name
    if not path.stat().st_size:
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # slices of an np.memmap are slow


def is_mapped(files: Sequence[str | Column]) -> bool:
    """Returns whether the rows of a corpus are memory-mapped instead of being read into memory.

    This is the case if one of the files is a stream, such as standard input, or if the total size of the files is at
    least ``IN_MEMORY_BYTES``; the size of a compressed file or a Parquet file is multiplied by three.
    """
    total = 0
    for file in files:
        path = Path(_path(file))
        if path.exists() and path.is_file():
            # Compressed text has about a third of its original size.
            total += path.stat().st_size * (3 if path.suffix.lower() in (*COMPRESSED, ".parquet") else 1)
        elif str(path) == "-" or path.exists():
            return True
    return total >= IN_MEMORY_BYTES


def count_repeats(hashes: npt.NDArray[np.uint64], words: npt.NDArray[np.uint32]) -> int:
    """Returns the number of non-blank rows whose hash equals the hash of an earlier row."""
    ordered = np.sort(hashes[words > 0])  # np.unique is many times slower for millions of rows
    return int((ordered[1:] == ordered[:-1]).sum())


def _fits(entry: Entry) -> bool:
    size = (entry.folder / "rows.txt").stat().st_size
    return ends_fit(_map(entry.folder, "ends.u64", "<u8"), entry.meta["rows"], size)


class StoredRows:
    """The rows of a corpus, written once by the Rust core and mapped into memory.

    This class has the methods of ``_core.Rows``. The files are described in ``rust/src/text/row_files.rs``.
    """

    def __init__(self, entry: Entry, temporary: tempfile.TemporaryDirectory[str] | None = None) -> None:
        self.folder = str(entry.folder)
        self.files: list[Any] = [tuple(file) for file in entry.meta["files"]]
        self.repaired: int = entry.meta["repaired"]
        self.joined_lines: int = entry.meta["joined_lines"]
        self.repeats: int = entry.meta["repeats"]
        self._temporary = temporary  # the folder is deleted with this object
        self._ends = _map(self.folder, "ends.u64", "<u8")
        self._text = _map(self.folder, "rows.txt", "u1")

    @classmethod
    def open(
        cls,
        files: Sequence[str | Column],
        reading: ReadOptions,
        cache: str | None,
        progress: ProgressCallback | None = None,
    ) -> StoredRows:
        """Opens the cached rows of files; if they are not in the cache, they are first written to it.

        The key of an entry holds the path, column, size and modification time of each file, and the reading options
        that affect the rows. If one of the files is a stream (standard input, a pipe), the rows are instead written to
        a temporary folder, which is deleted with this object. ``progress`` is called with the arguments of
        ``Callback.on_progress``.
        """
        paths = [_path(file) for file in files]

        def report(done: int, total: int) -> None:
            if progress:
                progress("reading the corpus", done, total, "bytes")

        def write(folder: Path) -> dict[str, Any]:
            rows, records, repaired = in_thread(
                lambda shared: _core.write_rows(list(files), str(folder), reading, shared), report
            )
            size = sum(file[1] for file in records)
            report(size, size)
            meta = {"rows": rows, "files": records, "repaired": repaired, "joined_lines": joined_lines(files)}
            repeats = count_repeats(_map(folder, "hashes.u64", "<u8"), _map(folder, "words.u32", "<u4"))
            return {**meta, "repeats": repeats, "paths": paths}

        if any(not os.path.isfile(path) for path in paths):
            temporary = tempfile.TemporaryDirectory(prefix="cse-rows-")
            folder = Path(temporary.name)
            return cls(Entry(folder, write(folder)), temporary)
        stamps = [(os.path.realpath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths]
        key = {
            "version": 2,
            "files": stamps,
            "paths": paths,
            "columns": [None if isinstance(file, str) else file.column for file in files],
            "encoding_errors": reading["encoding_errors"],
            "max_line_bytes": reading["max_line_bytes"],
        }
        entry, _ = open_entry(cache_folder(cache), "rows", key, write, _fits)
        return cls(entry)

    def __len__(self) -> int:
        return len(self._ends)

    def take(self, rows: list[int]) -> list[str]:
        """Returns the texts of the given rows, in the given order."""
        texts = []
        for row in rows:
            if not 0 <= row < len(self._ends):
                raise InputError(f"row: {row} is out of range; there are {len(self._ends)} rows")
            start = int(self._ends[row - 1]) if row else 0
            try:
                texts.append(bytes(self._text[start : int(self._ends[row])]).decode("utf8"))
            except UnicodeDecodeError:
                raise InputError(
                    f"{self.folder}: row {row + 1} of the cached corpus has changed since the run began; start the "
                    "run again, so that the corpus is read again"
                ) from None
        return texts

    def word_counts(self) -> Any:
        """Returns the number of words of each row, ``(n,)`` uint32, memory-mapped."""
        return _map(self.folder, "words.u32", "<u4")

    def hashes(self) -> Any:
        """Returns a 64-bit hash of each row, ``(n,)`` uint64, memory-mapped."""
        return _map(self.folder, "hashes.u64", "<u8")
