"""Runs a job over many files: one after the other on this machine, or on a Ray cluster (extra ``cse[ray]``).

The output for one file is a part; a shard is a file together with the name of its part.

On a cluster, each worker is an actor that loads the index or the model once and processes one file at a time. A lost
worker is replaced, and its file is given to another worker. Ray Data is not used: its blocks lack row numbers
within the whole corpus and do not end where files end, and it neither reads ``.zst`` text nor writes one output file
per input file.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .. import _core
from ..background import RETRIES, cause_of, enter
from ..data import readers
from ..data.readers import ReadOptions, SourceFile
from ..errors import InputError, first_line
from .jobs import Job, make
from .parts import Shard

Failure = tuple[Shard, Exception]
"""A shard whose part could not be made, and the reason."""


def count(path: str, column: str | None, reading: ReadOptions, home: str = "") -> SourceFile:
    """Counts the rows of a file, and returns it as a ``SourceFile``; on a worker, ``home`` is that of ``enter``."""
    enter(home)
    (file,) = _core.count_rows(readers.resolve([path], column), reading)
    return SourceFile(**{**file, "path": path})


def count_here(
    files: Sequence[tuple[str, str | None]], reading: ReadOptions, progress: Callable[[int], None]
) -> list[SourceFile]:
    """Returns the ``SourceFile`` of each file, given as path and column; calls ``progress(1)`` after each file."""
    counted = []
    for path, column in files:
        counted.append(count(path, column, reading))
        progress(1)
    return counted


def count_on_cluster(ray: Any, files: Sequence[tuple[str, str | None]], reading: ReadOptions) -> list[SourceFile]:
    """Counts like ``count_here``, with one task per file."""
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(count)
    counted: list[SourceFile] = ray.get([task.remote(path, column, reading, os.getcwd()) for path, column in files])
    return counted


def run_here(
    job: Job, shards: Sequence[Shard], folder: Path, threads: int, progress: Callable[[int], None]
) -> list[Failure]:
    """Makes the parts of shards one after the other; returns the parts that could not be made.

    Args:
        job: The job that makes the parts.
        shards: The files and the names of their parts.
        folder: Folder of the parts.
        threads: CPU threads; 0: all cores.
        progress: Called with the number of rows done since its last call.
    """
    work = job.worker(None, threads)
    failures: list[Failure] = []
    for shard in shards:
        try:
            make(work, shard, folder, progress)
        except (InputError, OSError) as error:
            failures.append((shard, error))
    return failures


class _Worker:
    """A Ray actor that makes parts."""

    def __init__(self, job: Job, shared: bytes | None, threads: int, home: str) -> None:
        self._arguments = job, shared, threads, home
        self._work: Any = None

    def load(self) -> None:
        """Loads the index or model; not done in the constructor, whose errors Ray would report without their cause."""
        job, shared, threads, home = self._arguments
        enter(home)
        self._work = job.worker(shared, threads)
        self._arguments = job, None, threads, home

    def make(self, shard: Shard, folder: Path) -> int:
        make(self._work, shard, folder, lambda rows: None)
        return shard.source.rows


def _places(ray: Any, threads: int, gpus: float) -> int:
    """Returns how many workers fit on the nodes; a worker cannot span two nodes. Raises ``InputError`` if none does."""
    places = 0
    for node in ray.nodes():
        resources = node["Resources"] if node["Alive"] else {}
        fitting = int(resources.get("CPU", 0) // threads)
        places += min(fitting, int(resources.get("GPU", 0) / gpus)) if gpus else fitting
    if places < 1:
        wanted = f"{threads} CPU" + (f" and {gpus:g} GPU" if gpus else "")
        raise InputError(
            f"--engine ray: no node has {wanted} for a worker; lower --threads or --gpus-per-worker, or add nodes"
        )
    return places


def run_on_cluster(
    ray: Any,
    job: Job,
    shards: Sequence[Shard],
    folder: Path,
    threads: int,
    progress: Callable[[int], None],
    gpus: float = 0,
) -> list[Failure]:
    """Makes the parts of shards on the workers of a cluster; returns the parts that could not be made.

    Args:
        ray: The module ``ray``, connected to a cluster.
        job: The job that makes the parts.
        shards: The files and the names of their parts.
        folder: Folder of the parts, which all workers must be able to write to.
        threads: CPU threads per worker; 0: one.
        progress: Called with the number of rows done since its last call.
        gpus: GPUs per worker; with a fraction, such as 0.5, several workers share a GPU.

    Raises:
        InputError: If no node has enough CPUs and GPUs for a worker, if a worker cannot load the index or the
            model, or if more than ``RETRIES + len(shards)`` workers are lost.
    """
    threads = max(threads, 1)
    places = _places(ray, threads, gpus)
    home, shared = os.getcwd(), job.shared()
    stored = None if shared is None else ray.put(shared)  # stored once for all workers
    actor = ray.remote(num_cpus=threads, num_gpus=gpus, max_restarts=0)(_Worker)
    waiting, tries, failures = deque(shards), Counter[str](), list[Failure]()
    running: dict[Any, tuple[Any, Shard | None]] = {}
    lost = 0  # number of lost workers

    def start() -> None:
        worker = actor.remote(job, stored, threads, home)
        running[worker.load.remote()] = (worker, None)

    for _ in range(min(places, len(waiting))):
        start()
    while waiting or any(shard is not None for _, shard in running.values()):
        ready, _ = ray.wait(list(running), timeout=1)
        for reference in ready:
            worker, shard = running.pop(reference)
            try:
                rows = ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                cause = cause_of(error)
                if shard is None:
                    raise cause from None  # the index or the model cannot be loaded
                failures.append((shard, cause))
            except ray.exceptions.RayError as error:
                lost += 1
                if shard is not None:
                    tries[shard.part] += 1
                    if tries[shard.part] > RETRIES:
                        why = f"{RETRIES + 1} workers were lost while they read it ({first_line(error)})"
                        failures.append((shard, InputError(f"{shard.source.path}: {why}")))
                    else:
                        waiting.appendleft(shard)
                if lost > RETRIES + len(shards):
                    raise InputError(
                        f"--engine ray: {lost} workers were lost ({first_line(error)}); look at the cluster's logs"
                    ) from None
                if waiting:
                    logging.getLogger(__name__).warning("a worker was lost; another worker takes its place")
                    start()
                continue
            else:
                if shard is not None:
                    progress(rows)
            if waiting:
                shard = waiting.popleft()
                running[worker.make.remote(shard, folder.absolute())] = (worker, shard)
            else:
                ray.kill(worker)
        progress(0)
    for worker, _ in running.values():
        ray.kill(worker)
    return failures
