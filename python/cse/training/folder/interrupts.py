"""Handles the signals that end a run."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

from ...background import handle_stops
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
    the next exchange is computed from the step time of the slowest rank, and is the same on every rank. A single rank
    checks its signals at every step. ``step`` is the number of steps done so far.
    """

    def __init__(self, world: World, stop: StopRequest, step: int = 0) -> None:
        self.world, self.stop = world, stop
        self._asked_at = time.perf_counter()
        self._asked, self._next = step, step

    def signal(self, step: int, *, now: bool = False) -> int:
        """Returns the highest signal number that any rank has received; 0 if there is none, or if no exchange is due.

        Called by every rank after every step. ``now``, the same on every rank, exchanges signals even if none is due.
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
