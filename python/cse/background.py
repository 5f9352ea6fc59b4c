"""Calls into the Rust core, which Ctrl-C interrupts, and the signals that end a command."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from types import FrameType
from typing import Any, TypeVar

from ._core import Progress

T = TypeVar("T")

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command: Ctrl-C, a request to end, and a terminal that was closed."""


def handle_stops(handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Calls ``handler`` for the signals in ``STOPPING`` that are not ignored; returns the handlers before, by signal.

    After SIGHUP, output to a terminal is discarded, because a write to a closed terminal is an error.
    """
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # false once the terminal is closed

    def handle(number: int, frame: FrameType | None) -> None:
        for descriptor in terminals if number == signal.SIGHUP else ():
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        handler(number, frame)

    before = {number: signal.getsignal(number) for number in STOPPING}
    return {number: signal.signal(number, handle) for number, old in before.items() if old != signal.SIG_IGN}


ProgressCallback = Callable[[str, int, int, str], object]
"""Called with the name of a phase, the number of units done, the total, and the unit; see ``Callback.on_progress``."""


def in_thread(work: Callable[[Progress], T], on_progress: Callable[[int, int], object]) -> T:
    """Runs a call into the Rust core in a thread; an interrupt is raised after the core has stopped.

    After 0.4 seconds, ``on_progress`` is called with the bytes done and the total (0 while it is unknown).
    """
    progress, call, begun = Progress(), Future[T](), threading.Event()

    def run() -> None:
        begun.set()
        try:
            call.set_result(work(progress))
        except BaseException as error:
            call.set_exception(error)

    # Not an executor: if it is interrupted while it starts its thread, Python waits for that thread forever at the end.
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
        if not wait([call], 0.3).done:
            while not wait([call], 0.1).done:
                on_progress(progress.done, progress.total)
    except BaseException:
        progress.cancel()
        while not call.done():  # further interrupts must not end the process before the core has removed its files
            with suppress(KeyboardInterrupt):
                if not begun.wait(1):
                    break  # the thread was not started
                wait([call])
        raise
    return call.result()
