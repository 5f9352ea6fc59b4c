"""The manifest of a checkpoint: the hashes of its files, by which damage is detected."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError

from ..._core import hash_file
from ...errors import RunError

MANIFEST = "manifest.json"


class TornCheckpoint(RunError):
    """Raised for a checkpoint in which files are missing or differ from what was written."""


def read_manifest(folder: Path) -> dict[str, str]:
    """Returns the hashes by file name (relative to the checkpoint); raises ``ValueError`` for an invalid manifest."""
    stored = json.loads((folder / MANIFEST).read_text(encoding="utf8"))
    if not isinstance(stored, dict):
        raise ValueError(f"{MANIFEST} differs from what was written")
    return stored


def verify(folder: Path, name: str, hashes: Mapping[str, str]) -> None:
    """Raises ``ValueError`` if a file differs from what was written."""
    if hashes.get(name) != _hash(folder / name):
        raise ValueError(f"{name} differs from what was written")


def verify_all(folder: Path) -> None:
    """Raises ``ValueError`` if a file of a checkpoint is missing, was added, or differs from what was written."""
    stored, names = read_manifest(folder), contents(folder)
    if stored.keys() != names:
        raise ValueError(f"{min(stored.keys() ^ names)} is missing, or is not listed in the manifest")
    with ThreadPoolExecutor(2) as threads:
        for _ in threads.map(lambda name: verify(folder, name, stored), stored):
            pass


@contextmanager
def damage(folder: Path, checkpoints: Sequence[Path]) -> Iterator[None]:
    """Context manager that converts errors in reading a checkpoint to ``TornCheckpoint``.

    Args:
        folder: The checkpoint.
        checkpoints: All checkpoints of the run; the message names the latest one before ``folder``.
    """
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        others = [path for path in checkpoints if path.name < folder.name]
        remedy = f"use the one before: cse train --resume {others[-1]}" if others else "there is no earlier one"
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = f"{Path(error.filename).name}: {error.strerror.lower()}"
        raise TornCheckpoint(f"{folder}: the checkpoint is damaged ({why}); {remedy}") from None


def contents(folder: Path) -> set[str]:
    """Returns the names of all files in a checkpoint except the manifest, relative to the checkpoint."""
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
    """Flushes a file to the disk and returns its hash; ``known`` holds hashes computed earlier, by ``identity``."""
    found = known.get(identity(path)) or _hash(path)
    flush(path)
    return found


def identity(path: Path) -> tuple[int, ...]:
    """Returns a key that is equal for two hard links to the same unchanged file."""
    status = path.stat()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
