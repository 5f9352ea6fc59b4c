"""Finds the checkpoints of a run, and verifies their configurations. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ...errors import InputError, RunError
from ...io import check_files, read_json
from .lock import FOLDER, is_unsaved

MANIFEST = "manifest.json"
CONFIG = "config.toml"


class TornCheckpoint(RunError):
    """Raised for a checkpoint in which files are missing or differ from what was written."""


def read_manifest(folder: Path) -> dict[str, str]:
    """Returns the hashes by file name (relative to the checkpoint); raises ``ValueError`` for an invalid manifest."""
    return read_json(folder / MANIFEST, dict[str, str])


@contextmanager
def damage(folder: Path) -> Iterator[None]:
    """Context manager that converts errors in reading a checkpoint to ``TornCheckpoint``."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        others = [path for path in list_checkpoints(folder.parent.parent) if path.name < folder.name]
        remedy = f"use the one before: cse train --resume {others[-1]}" if others else "there is no earlier one"
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = f"{Path(error.filename).name}: {error.strerror.lower()}"
        raise TornCheckpoint(f"{folder}: the checkpoint is damaged ({why}); {remedy}") from None


def list_checkpoints(run: Path) -> list[Path]:
    """Returns the folders of the checkpoints of a run, ordered by step."""
    return sorted((run / FOLDER).glob("step-*")) if (run / FOLDER).is_dir() else []


def find_checkpoint(path: Path) -> Path:
    """Returns ``path``, the folder of a checkpoint, or the latest one in it; ``InputError`` if there is none."""
    if path.parent.name == FOLDER and path.is_dir():
        return path
    if not path.is_dir():
        raise InputError(f"--resume {path}: no such folder; name a run or one of its checkpoints")
    checkpoints = list_checkpoints(path)
    if not checkpoints and is_unsaved(path) and (path / CONFIG).is_file():
        raise InputError(
            f"--resume {path}: the run ended before its first checkpoint; begin it again: "
            f"cse train --config {path / CONFIG} --name {path.name}"
        )
    if not checkpoints:
        raise InputError(
            f"--resume {path} has no checkpoint; a run saves one at its first evaluation in training, every N steps "
            "with --save-every N, after a signal, and at its end"
        )
    return checkpoints[-1]


def config_file(folder: Path) -> Path:
    """Returns the path of the configuration of a checkpoint; raises ``TornCheckpoint`` if the file is damaged."""
    with damage(folder):
        check_files(folder, read_manifest(folder), [CONFIG])
    return folder / CONFIG
