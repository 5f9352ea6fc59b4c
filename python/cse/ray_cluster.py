"""Connection to a Ray cluster (extra ``cse[ray]``), and handling of errors raised by its workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import InputError, first_line

RETRIES = 3
"""Maximum number of times that a task is repeated because its worker was lost."""


@contextmanager
def connected() -> Iterator[Any]:
    """Context manager that yields the module ``ray``, connected to a cluster.

    If this process is already connected, that connection is used and stays open. Otherwise, Ray connects to the cluster
    at ``RAY_ADDRESS`` or, if this is not set, to a cluster that runs on this machine, or starts a local cluster.

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
            raise InputError(
                f"--engine ray: no cluster could be reached ({first_line(error)}); check RAY_ADDRESS"
            ) from None
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def enter(home: str) -> None:
    """Changes the working directory of a worker to ``home``, the working directory of the caller.

    Relative paths then name the same files in both processes. Does nothing if the worker's machine has no such folder.
    """
    if os.path.isdir(home):
        os.chdir(home)


def cause_of(error: Any) -> Exception:
    """Returns the cause of a worker's error if it is an ``InputError`` or ``OSError``; otherwise raises the error."""
    if isinstance(error.cause, (InputError, OSError)):
        return error.cause
    raise error
