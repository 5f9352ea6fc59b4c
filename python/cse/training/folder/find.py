"""Finds and locks the folder of a run and its checkpoints. This module does not import torch."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from safetensors import SafetensorError

from ... import io
from ...encoder import taught
from ...encoder.taught import SEEN
from ...errors import InputError, RunError
from ...io import check_files, read_json

FOLDER = "checkpoints"
MANIFEST = "manifest.json"
CONFIG = "config.toml"
# What a run writes before its first checkpoint, and last/ and a report, which may stand there without one.
FIRST = {CONFIG, "environment.json", "data.json", "log.jsonl", "tensorboard", "tfidf", "best", FOLDER}
FIRST |= {"last", "report.html", SEEN, "judges.json", "before.json"}


class TornCheckpoint(RunError):
    """Raised for a checkpoint in which files are missing or differ from what was written."""


@contextmanager
def damage(folder: Path) -> Iterator[None]:
    """Context manager that converts errors in reading a checkpoint to ``TornCheckpoint``."""
    try:
        yield
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        others = [path for path in list_checkpoints(folder.parent.parent) if path.name < folder.name]
        remedy = f"use the one before: {resuming(others[-1])}" if others else "there is no earlier one"
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = f"{Path(error.filename).name}: {error.strerror.lower()}"
        raise TornCheckpoint(f"{folder}: the checkpoint is damaged ({why}); {remedy}") from None


def run_of(model: str) -> str | None:
    """Returns the folder of the run that saved a model, which is this folder or its best/; None if it is no run."""
    run = taught.run_of(model)
    return str(run) if run is not None and Path(model) in (run, run / "best") else None


def resuming(folder: Path) -> str:
    """Returns the command that resumes a run, or one of its checkpoints."""
    return f"cse train --resume {quote(str(folder))}"


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
        check_files(folder, read_json(folder / MANIFEST, dict[str, str]), [CONFIG])
    return folder / CONFIG


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks the folder of a run; raises ``InputError`` if another process holds the lock."""
    with io.locked(folder, f"{folder}: another process is writing to this run; wait for it, or stop it"):
        yield


def check_free(folder: Path) -> None:
    """Raises ``InputError`` if a folder exists, unless a new run may replace it."""
    if is_unsaved(folder):
        with locked(folder):
            return
    if folder.exists():
        remedy = f"resume it with {resuming(folder)}, " if list_checkpoints(folder) else ""
        raise InputError(f"--name: {folder} exists; {remedy}choose another name or remove it")


def files_of(run: Path) -> set[str]:
    """Returns the paths of the files of a run that cse wrote, relative to its folder; see ``cse.io.contents``."""
    return io.contents(
        run, {*FIRST, "result.json", "labelled.safetensors", "before", "index"}
    )  # the last two are of cse train --query


def is_unsaved(run: Path) -> bool:
    """Returns whether a folder is empty, or belongs to a run that ended before its first checkpoint."""
    if not run.is_dir():
        return False
    names = {path.name for path in run.iterdir() if not io.is_temporary(path)}
    return not names or (names <= FIRST and CONFIG in names and not list_checkpoints(run))


def clear(run: Path) -> None:
    """Empties the folder of an unsaved run, which is locked; config.toml, which shows what it is, goes last."""
    for path in sorted(run.iterdir(), key=lambda path: path.name == CONFIG):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
