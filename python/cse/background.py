"""Runs calls into the Rust core in a thread, so that Ctrl-C interrupts them; defines the type of progress callbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from ._core import Progress

T = TypeVar("T")

ProgressCallback = Callable[[str, int, int, str], object]
"""Called with the name of a phase, the number of units done, the total, and the unit; see ``Callback.on_progress``."""


def in_thread(work: Callable[[Progress], T], on_progress: Callable[[int, int], object]) -> T:
    """Runs a call into the Rust core in a thread and waits for it.

    Args:
        work: Called once in the thread, with the ``Progress`` object to pass to the core.
        on_progress: Called in the calling thread, after 0.4 seconds and then every 0.1 seconds, with the number of
            bytes done and the total number of bytes; the total is 0 while it is unknown.

    Returns:
        The result of ``work``.

    Raises:
        BaseException: The exception that ``work`` raised. A KeyboardInterrupt, or an exception from ``on_progress``, is
            raised only after the core has stopped and removed its temporary files.
    """
    progress = Progress()
    outcome: list[T] = []
    failure: list[BaseException] = []
    finished = threading.Event()

    def run() -> None:
        try:
            outcome.append(work(progress))
        except BaseException as error:
            failure.append(error)
        finally:
            finished.set()

    threading.Thread(target=run).start()
    try:
        if not finished.wait(0.3):
            while not finished.wait(0.1):
                on_progress(progress.done, progress.total)
    except BaseException:
        progress.cancel()
        # This waits for an Event because, on Python 3.11, Thread.join returns at once after a KeyboardInterrupt. The
        # loop keeps further interrupts from ending the process before the core has removed its temporary files.
        while not finished.is_set():
            try:
                finished.wait()
            except KeyboardInterrupt:
                continue
        raise
    if failure:
        raise failure[0]
    return outcome[0]
