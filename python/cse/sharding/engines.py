"""Calls a function for many files, one after the other on this machine or as tasks of a Ray cluster (``cse[ray]``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from ..background import RETRIES, cause_of, enter
from ..errors import InputError, first_line
from .jobs import Job, Work, make
from .parts import Parts, Shard

T = TypeVar("T")
R = TypeVar("R")


def here(function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R | Exception]]:
    """Calls a function for each item; yields the item and the result, or the ``InputError`` or ``OSError``."""
    for item in items:
        try:
            yield item, function(item)
        except (InputError, OSError) as error:
            yield item, error


def on_cluster(
    ray: Any, function: Callable[[T], R], items: Sequence[T], cpus: int = 1, gpus: float = 0
) -> Iterator[tuple[T, R | Exception]]:
    """Does the same with one task per item, in any order; Ray repeats the task of a worker that was lost.

    Raises ``InputError`` if no node has so many CPUs and GPUs, for which Ray would wait.
    """
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


def make_parts(
    job: Job, parts: Parts, ray: Any, gpus: float, progress: Callable[[int], None]
) -> list[tuple[Shard, Exception]]:
    """Makes the missing parts of a folder, within ``locked``; returns those that could not be made, and why.

    ``ray`` is the module, connected to a cluster, or None: the parts are made in this process.
    """
    folder = parts.folder.absolute()
    if ray is None:
        work = job.load(job.reading)
        outcomes = here(lambda shard: make(work, shard, folder, progress), parts.missing())
    else:
        threads = max(job.reading["threads"], 1)
        stored = ray.put(partial(job.load, {**job.reading, "threads": threads}))
        function = partial(_make_there, [stored], folder)  # in a list, so that Ray does not load it for each task
        outcomes = on_cluster(ray, function, parts.missing(), threads, gpus)
    failures: list[tuple[Shard, Exception]] = []
    for shard, outcome in outcomes:
        if isinstance(outcome, Exception):
            failures.append((shard, outcome))
        else:
            parts.made[shard.part] = outcome
            progress(0 if ray is None else shard.source.rows)
    return failures


def _make_there(stored: list[Any], folder: Path, shard: Shard) -> dict[str, Any]:
    return make(_loaded(stored[0]), shard, folder, lambda rows: None)


@lru_cache(1)
def _loaded(reference: Any) -> Work:
    """Returns the work of a job in Ray's object store; its index or model is loaded once per worker."""
    import ray

    work: Work = ray.get(reference)()
    return work
