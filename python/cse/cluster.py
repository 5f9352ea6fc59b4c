"""Calls a function for each of several items, here or on a Ray cluster; the connection to the cluster."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryFile
from typing import Any, TypeVar

from .background import STOPPING
from .errors import InputError, first_line, shortened

T = TypeVar("T")
R = TypeVar("R")
RETRIES = 3
"""Maximum number of times that a task is repeated because its worker was lost."""
CONNECTING = 10.0
"""Seconds in which a cluster must accept a connection."""
ANSWERING = 28.0
"""Seconds in which a cluster must answer, from the beginning."""
ATTEMPT = """
import logging, sys
try:
    import ray
    ray.init(log_to_driver=False, logging_level=logging.CRITICAL)
except Exception as error:
    sys.exit(" ".join(str(error).split()) or type(error).__name__)
"""


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
            if (address := os.environ.get("RAY_ADDRESS", "")) not in ("", "local"):
                _try(address)
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
            if threading.current_thread() is threading.main_thread():  # Ray's own handler exits with another code
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        except (OSError, RuntimeError, ValueError, ImportError) as error:
            raise InputError(
                f"--engine ray: no cluster could be reached ({shortened(first_line(error))}); check RAY_ADDRESS"
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


def _try(address: str) -> None:
    """Raises ``OSError`` if no cluster answers at an address; tries it in another process.

    Ray itself waits for an address that accepts no connection, and without end for a server of another kind, or ends
    the process.
    """
    until = time.monotonic() + ANSWERING
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECTING).close()
    with TemporaryFile() as errors:
        attempt = subprocess.Popen([sys.executable, "-c", ATTEMPT], stdout=subprocess.DEVNULL, stderr=errors)
        try:
            code = attempt.wait(until - time.monotonic())
        except subprocess.TimeoutExpired:
            raise OSError(f"{address} did not answer as a Ray cluster within {ANSWERING:g} seconds") from None
        finally:
            attempt.kill()
            attempt.wait()
        if code:
            errors.seek(0)
            lines = errors.read().decode("utf8", "replace").splitlines() if code == 1 else []
            raise OSError(lines[-1] if lines else f"{address} did not answer as a Ray cluster")


def enter(home: str) -> None:
    if os.path.isdir(home):
        os.chdir(home)


def cause_of(error: Any) -> Exception:
    if isinstance(error.cause, (InputError, OSError)):
        return error.cause
    raise error


def results(
    function: Callable[[T], R], items: Sequence[T], ray: Any = None, cpus: int = 1, gpus: float = 0
) -> Iterator[tuple[T, R | Exception]]:
    """Calls a function for each item; yields the item and the result, or the ``InputError`` or ``OSError``.

    With ``ray``, the module as ``connected`` yields it, each call is a task of the cluster, which repeats the task of a
    lost worker, and the order is as they end. Raises ``InputError`` if no node has so many CPUs and GPUs, for
    which Ray would wait.
    """
    if ray is None:
        for item in items:
            try:
                yield item, function(item)
            except (InputError, OSError) as error:
                yield item, error
        return
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        wanted = f"{cpus} CPU" + (f" and {gpus:g} GPU" if gpus else "")
        raise InputError(
            f"--engine ray: no node has {wanted} for a worker; lower --threads or --gpus-per-worker, or add nodes"
        )
    # max_calls=0: a worker keeps what it has loaded for the next task.
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, max_calls=0)(run_task)
    running = {task.remote(function, os.getcwd(), item): item for item in items}
    while running:
        (done,), _ = ray.wait(list(running))
        item, outcome = running.pop(done), None
        try:
            outcome = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            outcome = cause_of(error)
        except ray.exceptions.RayError as error:
            outcome = InputError(f"{RETRIES + 1} workers were lost while they read it ({first_line(error)})")
        yield item, outcome


def run_task(function: Callable[[T], R], home: str, item: T) -> R:
    enter(home)
    return function(item)
