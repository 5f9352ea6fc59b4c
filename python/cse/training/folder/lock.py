"""The lock of a run, and whether its folder may be replaced: that of a run that has saved no result.

Also removes what killed processes left in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ... import io
from ...errors import InputError


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks the folder of a run; raises ``InputError`` if another process holds the lock."""
    taken = f"{folder}: another process is writing to this run; wait for it, or stop it"
    with io.locked(folder, taken):
        yield


def check_free(folder: Path) -> None:
    """Raises ``InputError`` if a folder exists, unless a new run may replace it."""
    if is_unsaved(folder):
        with locked(folder):
            return
    if folder.exists():
        remedy = f"resume it with cse train --resume {folder}, " if has_checkpoint(folder) else ""
        raise InputError(f"--name: {folder} exists; {remedy}choose another name or remove it")


FOLDER = "checkpoints"
# What a run writes before its first checkpoint.
FIRST = {"config.toml", "environment.json", "data.json", "log.jsonl", "tensorboard", "tfidf", "best", FOLDER}


def check_links(run: Path) -> None:
    """Raises ``InputError`` for a link in the folder of a run, which would lead what is written there elsewhere."""
    for path in run.iterdir():
        if path.is_symlink():
            raise InputError(f"{path}: is a link, and a run writes only into its own folder; put a copy in its place")


def tidy(run: Path) -> None:
    """Removes files and folders that killed processes left in a run. The caller holds the lock of the run."""
    for folder in (run, run / FOLDER):
        io.remove_leftovers(folder)


def is_unsaved(run: Path) -> bool:
    """Returns whether a folder is empty, or belongs to a run that ended before its first checkpoint."""
    if not run.is_dir():
        return False
    names = {path.name for path in run.iterdir() if not io.is_temporary(path)}
    return not names or (names <= FIRST and "config.toml" in names and not has_checkpoint(run))


def has_checkpoint(run: Path) -> bool:
    """Returns whether a run has a checkpoint, from which it can be resumed."""
    return any((run / FOLDER).glob("step-*"))


def clear(run: Path) -> None:
    """Empties the folder of an unsaved run. The folder itself remains, because it is locked.

    config.toml is removed last, because it shows that the folder belongs to a run.
    """
    for path in sorted(run.iterdir(), key=lambda path: path.name == "config.toml"):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
