"""Connection to a Ray cluster (extra ``cse[ray]``), and errors of its workers."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .errors import InputError

__all__ = ["RETRIES", "cause_of", "connected", "enter", "first_line"]

RETRIES = 3
"""Number of times that a task whose worker was lost is given to another worker."""


@contextmanager
def connected() -> Iterator[Any]:
    """Context manager with the module ``ray``, connected to a cluster.

    The cluster is the one at ``RAY_ADDRESS``, else one that runs on this machine, else a new one. Raises ``InputError``
    if Ray is not installed, or if no cluster can be reached.
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
    """Changes to ``home``, the caller's working directory, if the worker has it, to resolve relative paths."""
    if os.path.isdir(home):
        os.chdir(home)


def cause_of(error: Any) -> Exception:
    """Returns the ``InputError`` or ``OSError`` that a worker raised; raises any other error unchanged."""
    if isinstance(error.cause, (InputError, OSError)):
        return error.cause
    raise error


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, since Ray's messages are long."""
    return (str(error).splitlines() or ["?"])[0]
