"""Rows of large corpora, which are read from memory-mapped files in the cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import cse._core as _core

from ..background import ProgressCallback, in_thread
from ..errors import InputError
from .entries import Entry, cache_folder, open_entry
from .readers import ReadOptions, joined_lines
from .tables import COMPRESSED, Column

IN_MEMORY_BYTES = 64 << 20
"""Files are read into memory if their estimated total size, uncompressed, is smaller than this."""


def _path(file: str | Column) -> str:
    return file if isinstance(file, str) else file.path


def _map(folder: str | Path, name: str, dtype: str) -> Any:
    path = Path(folder) / name
    if not path.stat().st_size:
        return np.empty(0, dtype=dtype)
    return np.asarray(np.memmap(path, dtype=dtype, mode="r"))  # slices of an np.memmap are slow


def read_small(files: Sequence[str | Column], reading: ReadOptions) -> _core.Rows | None:
    """Returns the rows of files; None if they are expected to be too large for memory, or can be read only once."""
    total = 0
    for path in map(_path, files):
        if os.path.isfile(path):
            # Compressed text has about a third of its original size.
            packed = os.path.splitext(path.lower())[1] in (*COMPRESSED, ".parquet")
            total += os.path.getsize(path) * (3 if packed else 1)
        elif path == "-" or os.path.exists(path):
            return None
    return None if total >= IN_MEMORY_BYTES else _core.Rows.read_up_to(list(files), reading, 3 * IN_MEMORY_BYTES)


class StoredRows:
    """As ``_core.Rows``, mapped into memory from the files that ``rust/src/text/rows.rs`` describes."""

    def __init__(self, entry: Entry, temporary: tempfile.TemporaryDirectory[str] | None = None) -> None:
        self.folder = str(entry.folder)
        self.files: list[Any] = entry.meta["files"]
        self.repaired: int = entry.meta["repaired"]
        self.joined_lines: int = entry.meta["joined_lines"]
        self._entry = entry  # kept in the cache while this object is in use
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
        """Opens the cached rows of files, and writes them first if they are not in the cache.

        If one of the files is a stream (standard input, a pipe), the rows are written to a temporary folder.
        """
        paths = [_path(file) for file in files]
        hashes: list[str] = []

        def report(done: int, total: int) -> None:
            if progress:
                progress("reading the corpus", done, total, "bytes")

        def write(folder: Path) -> dict[str, Any]:
            rows, records, repaired = in_thread(
                lambda shared: _core.write_rows(list(files), str(folder), reading, shared), report
            )
            if hashes and hashes != [file["xxh3"] for file in records]:
                raise InputError(f"{paths[0]}: a file of the corpus changed while it was read; run the command again")
            size = sum(file["bytes"] for file in records)
            report(size, size)
            return {"rows": rows, "files": records, "repaired": repaired, "joined_lines": joined_lines(files)}

        if any(not os.path.isfile(path) for path in paths):
            temporary = tempfile.TemporaryDirectory(prefix="cse-rows-")
            folder = Path(temporary.name)
            return cls(Entry(folder, write(folder)), temporary)
        with ThreadPoolExecutor(2) as threads:
            hashes += threads.map(_core.hash_file, paths)
        key = {
            "version": 6,
            "files": hashes,
            "paths": paths,
            "columns": [None if isinstance(file, str) else file.column for file in files],
            "encoding_errors": reading["encoding_errors"],
            "max_line_bytes": reading["max_line_bytes"],
        }
        return cls(open_entry(cache_folder(cache), "rows", key, write))

    def __len__(self) -> int:
        return len(self._ends)

    def take(self, rows: list[int]) -> list[str]:
        texts = []
        for row in rows:
            start = int(self._ends[row - 1]) if row else 0
            texts.append(bytes(self._text[start : int(self._ends[row])]).decode("utf8"))
        return texts

    def word_counts(self) -> Any:
        return _map(self.folder, "words.u32", "<u4")

    def hashes(self) -> Any:
        return _map(self.folder, "hashes.u64", "<u8")

    def keys(self) -> Any:
        return _map(self.folder, "keys.u64", "<u8")
