"""Handles the signals that end a run, locks the run folder, and removes what killed processes left in it.

Also detects runs that have saved no result.
"""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from ... import io
from ...background import handle_stops
from ...errors import InputError
from ..step.distributed import World

# Intended seconds of training between two exchanges of signals (see ``Agreement``). docs/training.md promises at most
# two seconds; the margin is needed because steps differ in length.
PERIOD = 1.0


class StopRequest:
    """Context manager that records SIGINT, SIGTERM and SIGHUP, so that the step in progress is finished and saved.

    A second signal has its usual effect. Signals are recorded only if the context is entered in the main thread.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = handle_stops(self._record)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


class Agreement:
    """Decides when the ranks exchange their signals, so that all of them stop at the same step.

    Exchanges are about ``PERIOD`` seconds of training apart, or one step if a step takes longer. They are frequent
    because torchrun kills the ranks 30 s after a signal, but an exchange at every step would stall a GPU. The step of
    the next exchange is computed from the step time of the slowest rank, and is the same on every rank.

    Args:
        world: The ranks (processes) of the run. A single rank checks its signals at every step.
        stop: The signals of this rank.
        step: Number of steps done so far; above 0 in a resumed run.
    """

    def __init__(self, world: World, stop: StopRequest, step: int = 0) -> None:
        self.world, self.stop = world, stop
        self._asked_at = time.perf_counter()
        self._asked, self._next = step, step

    def signal(self, step: int, *, now: bool = False) -> int:
        """Returns the highest signal number that any rank has received; 0 if there is none, or if no exchange is due.

        Called by every rank after every step.

        Args:
            step: Number of steps done.
            now: Exchange signals at this step even if no exchange is due; must be the same on every rank.
        """
        if self.world.size == 1:
            return self.stop.number
        if step < self._next and not now:
            return 0
        microseconds = 1e6 * (time.perf_counter() - self._asked_at) / max(step - self._asked, 1)
        number, slowest = self.world.highest(self.stop.number, int(microseconds) + 1)
        self._next = step + max(1, int(PERIOD * 1e6) // slowest)
        self._asked, self._asked_at = step, time.perf_counter()
        return number


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager that locks the folder of a run; raises ``InputError`` if another process holds the lock."""
    taken = f"{folder}: another process is writing to this run; wait for it, or stop it"
    with io.locked(folder, taken):
        yield


def check_free(folder: Path) -> None:
    """Raises ``InputError`` if a folder exists, unless a new run may replace it.

    An empty folder and the folder of an unsaved run may be replaced (see ``is_unsaved``), but not while another process
    writes to that run.
    """
    if is_unsaved(folder):
        with locked(folder):
            return
    if folder.exists():
        remedy = f"resume it with cse train --resume {folder}, " if has_checkpoint(folder) else ""
        raise InputError(f"--name: {folder} exists; {remedy}choose another name or remove it")


FOLDER = "checkpoints"
# What a run writes before its first checkpoint.
FIRST = {"config.toml", "environment.json", "data.json", "log.jsonl", "tensorboard", "best", FOLDER}


def tidy(run: Path) -> None:
    """Removes files and folders that killed processes left in a run. The caller holds the lock of the run."""
    for folder in (run, run / FOLDER):
        io.remove_leftovers(folder)


def is_unsaved(run: Path) -> bool:
    """Returns whether a folder is empty, or belongs to a run that ended before its first checkpoint.

    A folder with files that are not in ``FIRST`` does not count as unsaved.
    """
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
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
