"""The connection to a Ray cluster, and the errors of its tasks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .background import STOPPING
from .errors import InputError, first_line

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
