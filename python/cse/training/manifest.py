"""The manifest of a checkpoint: the hashes of its files."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from .._core import hash_file

__all__ = ["MANIFEST", "contents", "flush", "flushed", "identity", "read_manifest", "verify"]

MANIFEST = "manifest.json"


def read_manifest(folder: Path) -> dict[str, str]:
    """Returns the hashes by name of the file, relative to the checkpoint; raises ``ValueError`` if it holds none."""
    stored = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
    if not isinstance(stored, dict):
        raise ValueError(f"{MANIFEST} is not what was written")
    return stored


def verify(folder: Path, name: str, hashes: Mapping[str, str]) -> None:
    """Raises ``ValueError`` if a file is not what was written."""
    if hashes.get(name) != _hash(folder / name):
        raise ValueError(f"{name} is not what was written")


def contents(folder: Path) -> set[str]:
    """Returns the names of all files in a checkpoint but the manifest, relative to it."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MANIFEST}


def _hash(path: Path) -> str:
    try:
        return hash_file(path)
    except OSError as error:
        raise OSError(f"{path.name}: {error}") from None


def flush(path: Path) -> None:
    """Flushes a file to the disk."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def flushed(path: Path, known: Mapping[tuple[int, ...], str] = MappingProxyType({})) -> str:
    """Flushes a file to the disk and returns its hash, which may be known from an earlier checkpoint."""
    found = known.get(identity(path)) or _hash(path)
    flush(path)
    return found


def identity(path: Path) -> tuple[int, ...]:
    """Returns what is equal for two hard links to a file that was not changed."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
