"""The cache folder: rows and token ids of corpora as files that are mapped into memory.

Each entry is a folder with a ``meta.json`` that is written last and holds the sizes of the files. An entry without it,
or with files of other sizes, is not used. Entries are found by a hash of their key; a changed file has another key, and
its old entry remains until ``cse cache --clear``.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..io import dumps, naming

__all__ = ["Entry", "cache_folder", "clear", "entries", "find_entry", "open_entry"]

META = "meta.json"
KINDS = ("rows", "tokens")
# Folders of entries, and their locks and temporary folders. Nothing else in the cache folder is touched.
NAME = re.compile(f"({'|'.join(KINDS)})-[0-9a-f]{{24}}")
LEFT = re.compile(rf"\.{NAME.pattern}(\.lock|-.*)")


def cache_folder(given: str | None = None) -> Path:
    """Returns the cache folder: ``given``, else ``$CSE_CACHE``, else ``cse`` in the cache directory of the user."""
    from platformdirs import user_cache_path

    return Path(given or os.environ.get("CSE_CACHE") or user_cache_path("cse"))


@dataclass(frozen=True)
class Entry:
    """An entry of the cache."""

    folder: Path
    meta: dict[str, Any]
    """``kind``, ``key`` and what the writer added."""

    @property
    def kind(self) -> str:
        """Kind of the entry, one of ``KINDS``; known for a damaged entry as well."""
        return self.folder.name.partition("-")[0]

    @property
    def bytes(self) -> int:
        """Size of the files in bytes."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())


def find_entry(cache: Path, kind: str, key: dict[str, Any]) -> Entry | None:
    """Returns an entry, or None if it does not exist or is damaged; see ``open_entry``."""
    return _whole(cache / _name(kind, key))


def _name(kind: str, key: dict[str, Any]) -> str:
    return f"{kind}-{hashlib.sha256(dumps(key).encode()).hexdigest()[:24]}"


def open_entry(
    cache: Path, kind: str, key: dict[str, Any], write: Callable[[Path], dict[str, Any]]
) -> tuple[Entry, bool]:
    """Opens an entry, and writes it first if it does not exist or is damaged.

    It is written to a temporary folder, which is then renamed. Two processes that need the same entry do not write it
    twice: the second one waits for the first.

    Args:
        cache: The cache folder; created if it does not exist.
        kind: Kind of the entry, one of ``KINDS``, the start of its name.
        key: What the content depends on, serialisable to JSON.
        write: Writes the files to the given folder and returns what is added to ``meta.json``.

    Returns:
        The entry, and whether it was written by this call.

    Raises:
        OSError: If the cache cannot be written.
    """
    name = _name(kind, key)
    folder = cache / name
    if (found := _whole(folder)) is not None:
        return found, False
    with naming(cache):
        cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f".{name}.lock"):
        if (found := _whole(folder)) is not None:
            return found, False
        shutil.rmtree(folder, ignore_errors=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache))
        try:
            added = write(temporary)
            with naming(folder):
                sizes = {path.name: path.stat().st_size for path in temporary.iterdir()}
                record = {"kind": kind, "key": key, "sizes": sizes, **added}
                (temporary / META).write_text(dumps(record) + "\n", encoding="utf8")
                for path in temporary.iterdir():
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
                os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    entry = _read(folder)
    assert entry is not None
    return entry, True


def entries(cache: Path) -> list[Entry]:
    """Returns the entries of a cache folder, sorted by name; ``meta`` is empty for a damaged one."""
    if not cache.is_dir():
        return []
    folders = [path for path in sorted(cache.iterdir()) if NAME.fullmatch(path.name) and path.is_dir()]
    return [_read(folder) or Entry(folder, {}) for folder in folders]


def clear(cache: Path) -> tuple[int, int]:
    """Deletes all entries and what interrupted runs left; returns the number of entries and their size in bytes.

    Other files in the folder are not touched.
    """
    found = entries(cache)
    size = sum(entry.bytes for entry in found)
    for entry in found:
        shutil.rmtree(entry.folder)
    for left in cache.iterdir() if cache.is_dir() else ():
        if LEFT.fullmatch(left.name):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
    return len(found), size


def _read(folder: Path) -> Entry | None:
    try:
        meta = json.loads((folder / META).read_text(encoding="utf8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return Entry(folder, meta) if isinstance(meta, dict) else None


def _whole(folder: Path) -> Entry | None:
    """Returns the entry of a folder if its files have the sizes that were written."""
    entry = _read(folder)
    if entry is None:
        return None
    try:
        sizes = {name: (folder / name).stat().st_size for name in entry.meta["sizes"]}
    except (OSError, KeyError, TypeError):
        return None
    return entry if sizes == entry.meta["sizes"] else None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with naming(path), open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
