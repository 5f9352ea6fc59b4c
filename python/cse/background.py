"""Calls into the Rust core, which Ctrl-C interrupts; the connection to a Ray cluster; signals that end a command."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

from ._core import Progress
from .errors import InputError, first_line

T = TypeVar("T")

STOPPING = [signal.SIGINT, signal.SIGTERM]
"""The signals that end a command: Ctrl-C, a request to end, and (except on Windows) a terminal that was closed."""
if sys.platform != "win32":
    STOPPING.append(signal.SIGHUP)


def handle_stops(handler: Callable[[int, FrameType | None], object]) -> dict[int, Any]:
    """Calls ``handler`` for the signals in ``STOPPING`` that are not ignored; returns the handlers before, by signal.

    After SIGHUP, output to a terminal is discarded, because a write to a closed terminal is an error.
    """
    terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]  # false once the terminal is closed

    def handle(number: int, frame: FrameType | None) -> None:
        for descriptor in terminals if number == getattr(signal, "SIGHUP", None) else ():
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
    progress = Progress()
    thread = ThreadPoolExecutor(1)
    call = thread.submit(work, progress)
    thread.shutdown(wait=False)
    try:
        if not wait([call], 0.3).done:
            while not wait([call], 0.1).done:
                on_progress(progress.done, progress.total)
    except BaseException:
        progress.cancel()
        while not call.done():  # further interrupts must not end the process before the core has removed its files
            with suppress(KeyboardInterrupt):
                wait([call])
        raise
    return call.result()


RETRIES = 3
"""Maximum number of times that a task is repeated because its worker was lost."""
CONNECTING = 10.0
"""Seconds in which a cluster must accept a connection."""


@contextmanager
def connected() -> Iterator[Any]:
    """Context manager that yields the module ``ray``, connected to a cluster; an earlier connection stays open.

    If an ``InputError`` or ``OSError`` ended a task, it is raised itself.
    """
    try:
        # Set before the import: at a signal, Ray would print the stack of its C++ code, and end the process.
        os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
        import ray
    except ImportError:
        raise InputError("--engine ray: Ray is not installed; run pip install 'cse[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        handlers = {number: signal.getsignal(number) for number in STOPPING}
        try:
            host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition("://")[2].rpartition(":")
            if host and port.isdigit():  # Ray would wait for an address that does not accept a connection
                socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTING).close()
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
            if threading.current_thread() is threading.main_thread():  # Ray's own handler exits with another code
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        except (OSError, RuntimeError) as error:
            raise InputError(
                f"--engine ray: no cluster could be reached ({first_line(error)}); check RAY_ADDRESS"
            ) from None
    try:
        yield ray
    except ray.exceptions.RayTaskError as error:
        raise cause_of(error) from None
    except ray.exceptions.RayError as error:
        raise InputError(
            f"--engine ray: the cluster failed, despite up to {RETRIES} retries per task ({first_line(error)}); "
            "look at its logs, or use --engine local"
        ) from None
    finally:
        if ours:
            ray.shutdown()


def enter(home: str) -> None:
    if os.path.isdir(home):
        os.chdir(home)


def cause_of(error: Any) -> Exception:
    if isinstance(error.cause, (InputError, OSError)):
        return error.cause
    raise error
