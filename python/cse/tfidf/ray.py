"""Builds an index on a Ray cluster, with one task per file and a tree of merges (extra ``cse[ray]``).

Merging is associative, so the index equals, byte for byte, one built locally from the same files in the same order.
Ray handles placement, retries and lost workers. Every node must be able to read the files at the given paths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from .. import _core
from ..data import readers
from ..data.reading import ReadOptions
from ..errors import InputError, first_line
from ..ray_cluster import RETRIES, cause_of, connected, enter
from .options import WordOptions

__all__ = ["count_on_cluster"]

SAY_SECONDS = 5.0


def count_shard(
    path: str, column: str | None, words: WordOptions, reading: ReadOptions, home: str
) -> tuple[bytes, int]:
    """Returns the index of one file as bytes, and the number of fields with a line break. Runs on a worker."""
    enter(home)  # makes relative paths valid; the index records paths as given
    found = readers.resolve([path], column if readers.is_table(path) else None)
    return _core.count(found, words, reading), readers.joined_lines(found)


def merge_shards(*shards: bytes) -> bytes:
    """Merges the indexes of consecutive files, given as bytes. Runs on a worker."""
    return _core.merge(list(shards)) if len(shards) > 1 else shards[0]


def count_on_cluster(
    paths: readers.Paths,
    *,
    column: str | None,
    words: WordOptions,
    reading: ReadOptions,
    say: Callable[[str], None],
) -> tuple[bytes, int]:
    """Builds the index of files on the Ray cluster that ``cse.ray_cluster.connected`` finds or starts.

    Returns the index as bytes, and the number of fields with a line break. ``say`` is called with each
    line of progress to print.
    """
    files = [item if isinstance(item, str) else item.path for item in readers.resolve(paths, column)]
    if "-" in files:
        raise InputError("-: standard input cannot be read by --engine ray; name files that every worker can open")
    with connected() as ray:
        return _on_cluster(ray, files, column, words, reading, say)


def _on_cluster(
    ray: Any,
    files: list[str],
    column: str | None,
    words: WordOptions,
    reading: ReadOptions,
    say: Callable[[str], None],
) -> tuple[bytes, int]:
    one_thread: ReadOptions = {**reading, "threads": 1}
    count = ray.remote(num_cpus=1, max_retries=RETRIES, num_returns=2)(count_shard)
    merge = ray.remote(num_cpus=1, max_retries=RETRIES)(merge_shards)
    tasks = [count.remote(path, column, words, one_thread, os.getcwd()) for path in files]
    level = [data for data, _ in tasks]
    while len(level) > 1:
        level = [merge.remote(*level[i : i + 2]) for i in range(0, len(level), 2)]
    waiting = [joined for _, joined in tasks]
    started = shown = time.monotonic()
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=SAY_SECONDS)
            ray.get(ready)  # raises the error of a file as soon as it occurs
            now = time.monotonic()
            if now - shown >= SAY_SECONDS:
                shown, done = now, len(tasks) - len(waiting)
                left = f", about {(now - started) / done * len(waiting):,.0f} s left" if done else ""
                say(f"counting: {done:,} of {len(tasks):,} files{left}")
        return ray.get(level[0]), sum(ray.get([joined for _, joined in tasks]))
    except ray.exceptions.RayTaskError as error:
        raise cause_of(error) from None
    except ray.exceptions.RayError as error:
        raise InputError(
            f"--engine ray: the cluster failed, despite up to {RETRIES} retries per task ({first_line(error)}); "
            "look at its logs, or use --engine local"
        ) from None
