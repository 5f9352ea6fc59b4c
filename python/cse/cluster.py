"""Connection to a Ray cluster (extra ``cse[ray]``), and handling of errors raised by its workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import InputError

__all__ = ["RETRIES", "cause_of", "connected", "enter", "first_line"]

RETRIES = 3
"""Maximum number of times that a task is repeated because its worker was lost."""


@contextmanager
def connected() -> Iterator[Any]:
    """Context manager that yields the module ``ray``, connected to a cluster.

    A connection that this process already has is used. Otherwise, the cluster is the one at ``RAY_ADDRESS`` or, if this
    is not set, one that already runs on this machine; if there is neither, a local cluster is started.

    Raises ``InputError`` if Ray is not installed, or if no cluster can be reached.
    """
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray: Ray is not installed; run pip install 'cse[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError) as error:
            raise InputError(f"--engine ray: no cluster could be reached ({first_line(error)})") from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def enter(home: str) -> None:
    """Changes the working directory of a worker to ``home``, the working directory of the caller, for relative paths.

    Does nothing if the worker's machine has no such folder.
    """
    if os.path.isdir(home):
        os.chdir(home)


def cause_of(error: Any) -> Exception:
    """Returns the cause of a worker's error if the cause is an ``InputError`` or ``OSError``; else raises the error."""
    if isinstance(error.cause, (InputError, OSError)):
        return error.cause
    raise error


def first_line(error: Exception) -> str:
    """Returns only the first line of an error's message, because Ray's messages are long."""
    return (str(error).splitlines() or ["?"])[0]
