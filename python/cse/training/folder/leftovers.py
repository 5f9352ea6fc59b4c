"""Removes files that killed processes left in the folder of a run, and detects runs that have saved no result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from ...io import remove_leftovers

FOLDER = "checkpoints"
# What a run writes before it saves a result of training; until then, best/ holds the model before training.
FIRST = {"config.toml", "environment.json", "data.json", "log.jsonl", "tensorboard", "best", FOLDER}


def tidy(run: Path) -> None:
    """Removes files and folders that killed processes left in a run. The caller holds the lock of the run."""
    for folder in (run, run / FOLDER):
        remove_leftovers(folder)
        for path in _hidden(folder):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def is_unsaved(run: Path) -> bool:
    """Returns whether a folder is empty, or belongs to a run that ended before it saved a result of training.

    Such a run has no checkpoint, and was evaluated only before training, if at all. A folder with files that
    are not in ``FIRST`` does not count as unsaved.
    """
    if not run.is_dir():
        return False
    names = {path.name for path in run.iterdir()} - {path.name for path in _hidden(run)}
    if not names:
        return True
    if not names <= FIRST or "config.toml" not in names or has_checkpoint(run):
        return False
    return not ("best" in names and _last_evaluation(run / "log.jsonl") != 0)


def has_checkpoint(run: Path) -> bool:
    """Returns whether a run has a checkpoint, from which it can be resumed."""
    return any((run / FOLDER).glob("step-*"))


def clear(run: Path) -> None:
    """Empties the folder of an unsaved run. The folder itself remains, because it is locked."""
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _hidden(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.name.startswith((".cse-", ".step-", ".best.", ".last."))]


def _last_evaluation(log: Path) -> int | None:
    """Returns the step of the last evaluation in a log; None if there is none."""
    step = None
    try:
        lines = log.read_text(encoding="utf8").splitlines()
    except OSError:
        return None
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:  # an incomplete line, if the process was killed while writing it
            continue
        if record.get("event") == "evaluation":
            step = int(record["step"])
    return step
