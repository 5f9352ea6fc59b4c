"""The cache folder: rows, token ids, and copies of files of other file systems, as files that are mapped into memory,
and vectors of rows.

Each entry is a folder whose name contains a hash of its key, with a ``meta.json`` that holds the hash of each file.
When an entry is opened, its files are compared with these hashes, and a damaged entry is written again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from .. import io
from ..io import check_files, dumps, fresh_folder, hash_files, is_sealed, locked, naming, remove_folder, sealed

META = "meta.json"
KEPT_DAYS = 30
"""An entry that was not opened for as many days is removed when another one is written, unless a process uses it."""
# Pattern of the names of entries. Other files in the cache folder are not touched.
NAME = re.compile("(rows|tokens|files|vectors)-[0-9a-f]{24}")


def cache_folder(folder: str | None = None) -> Path:
    """Returns the cache folder: ``folder``, else ``$CSE_CACHE``, else ``cse`` in the cache directory of the user."""
    from platformdirs import user_cache_path

    return Path(folder or os.environ.get("CSE_CACHE") or user_cache_path("cse"))


@dataclass(frozen=True)
class Entry:
    """An entry of the cache, which is not removed before this object is deleted."""

    folder: Path
    meta: dict[str, Any]
    """``kind``, ``key``, ``xxh3`` (hashes of files) and the values that ``write`` returned."""
    held: BinaryIO | None = None
    """``meta.json``, open and with a shared lock."""


def find_entry(cache: Path, kind: str, key: dict[str, Any]) -> Entry | None:
    return _opened(cache / _name(kind, key))


def _name(kind: str, key: dict[str, Any]) -> str:
    return f"{kind}-{hashlib.sha256(dumps(key).encode()).hexdigest()[:24]}"


def open_entry(cache: Path, kind: str, key: dict[str, Any], write: Callable[[Path], dict[str, Any]]) -> Entry:
    """Opens an entry, and writes it first if it does not exist or is damaged.

    Two processes do not write the same entry: the second one waits for the first. ``key`` is what the content depends
    on. ``write`` writes files to the given folder and returns what is added to ``meta.json``.
    """
    folder = cache / _name(kind, key)
    if (entry := _opened(folder)) is not None:
        io.remove_leftovers(cache)  # the lock of a process that was killed after it had written the entry
        return entry
    with naming(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):
        if (entry := _opened(folder)) is not None:
            return entry
        _remove_old(cache)
        with fresh_folder(folder) as fresh:
            added = write(fresh)
            record = {"kind": kind, "key": key, "xxh3": hash_files(fresh), **added}
            (fresh / META).write_text(dumps(sealed(record)) + "\n", encoding="utf8")
    entry = _opened(folder, check=False)
    assert entry is not None
    return entry


def _remove_old(cache: Path) -> None:
    for folder in cache.iterdir():
        with suppress(OSError):  # in use, or removed by another process
            if NAME.fullmatch(folder.name) and folder.stat().st_mtime < time.time() - KEPT_DAYS * 86400:
                with locked(folder / META) as free:
                    if free:
                        remove_folder(folder)


def _opened(folder: Path, check: bool = True) -> Entry | None:
    """Returns the entry of a folder, with a lock on it; None if it cannot be read or, with ``check``, was changed."""
    try:
        held = open(folder / META, "rb")  # noqa: SIM115  # closed when the entry is deleted
        with suppress(OSError):  # a file system without locks
            fcntl.flock(held, fcntl.LOCK_SH)
        with suppress(OSError):  # a folder of another user
            os.utime(folder)  # the time of the last opening
        meta = json.loads(held.read())
        if not is_sealed(meta):
            return None
        if check:
            check_files(folder, meta["xxh3"], meta["xxh3"])
        return Entry(folder, meta, held)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
