"""Jobs that make one part, a file of negatives or embeddings, from each file of a corpus, here or on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _core
from ..background import RETRIES, cause_of, enter, in_thread
from ..data import readers, tables
from ..data.readers import ReadOptions, SourceFile
from ..errors import InputError, first_line
from ..io import dumps, write_text
from ..progress import counting
from ..tfidf.index import TfidfIndex
from .parts import Job, Parts, Progress, Shard, Work

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

T = TypeVar("T")
R = TypeVar("R")
File = tuple[str, str | None]
"""The path of a file of a corpus, and the column with the texts if it is a table."""


def find_sources(
    reading: ReadOptions,
    files: Sequence[str],
    column: str | None,
    known: Sequence[SourceFile],
    index: str,
    each: Callable[..., Iterator[tuple[File, SourceFile | Exception]]],
    *,
    elsewhere: bool,
) -> list[SourceFile]:
    """Returns the files of a corpus with their row counts; ``each`` is ``here`` or ``on_cluster``.

    Files ``known`` from the folder ``index`` are not counted, and need not exist here if they are read ``elsewhere``.
    """
    items = readers.resolve(list(files), column)
    wanted: list[File] = [(item, None) if isinstance(item, str) else (item.path, item.column) for item in items]
    listed = {(file.path, file.column): file for file in known}
    for file in wanted:
        path, source = file[0], listed.get(file)
        if source is not None and not os.path.isfile(path):
            if not elsewhere:
                del listed[file]
        elif source is not None and os.path.getsize(path) != source.bytes:
            raise InputError(
                f"{path}: has {os.path.getsize(path):,} bytes, but had {source.bytes:,} when the index {index} was "
                "built; build it again from these files"
            )
    if unknown := list(dict.fromkeys(file for file in wanted if file not in listed)):
        with counting("counting rows", len(unknown), "files") as more:
            for file, outcome in each(partial(count_rows, reading), unknown):
                if isinstance(outcome, Exception):
                    raise outcome
                listed[file] = outcome
                more(1)
    return [listed[file] for file in wanted]


def count_rows(reading: ReadOptions, file: File) -> SourceFile:
    path, column = file
    (counted,) = _core.count_rows(readers.resolve([path], column), reading)
    return SourceFile(**{**counted, "path": path})


def as_input(shard: Shard) -> list[str | tables.Column]:
    return readers.resolve([shard.source.path], shard.source.column)


def make(work: Work, shard: Shard, folder: Path, progress: Progress) -> dict[str, Any]:
    """Makes the part of a shard; returns its size, hash and counts, and writes them next to it.

    Raises ``InputError`` if the file has changed since its rows were counted; the part is then deleted.
    """
    path = folder / shard.part
    counted = work(shard, path, progress)
    if counted.pop("file") != shard.source.xxh3:
        path.unlink(missing_ok=True)
        raise InputError(
            f"{shard.source.path}: was changed after its rows were counted; make the parts in a new folder"
        )
    made = {"part_bytes": path.stat().st_size, "part_xxh3": _core.hash_file(path), "counted": counted}
    write_text(f"{path}.json", dumps({"xxh3": shard.source.xxh3, "first_row": shard.first_row, **made}) + "\n")
    return made


def augment_job(
    index: TfidfIndex,
    file: Path,
    *,
    filtered: dict[str, Any],
    drawing: dict[str, Any],
    copies: int,
    form: str,
    compression: str,
    reading: ReadOptions,
    elsewhere: bool,
) -> Job:
    """Returns the job of ``cse augment``: negatives for the rows of a file.

    ``file`` is that of the index, and ``filtered`` the arguments with which it was opened. With ``elsewhere``, the job
    holds the bytes of the index, for machines that need not have its folder.
    """
    settings = {"index": _core.hash_file(file), **filtered, **drawing, "copies": copies, "format": form}
    settings |= {"compression": compression, **_errors(reading)}
    suffix = (".txt" if form == "text" else ".jsonl") + ("" if compression == "none" else f".{compression}")
    opened: Callable[[], TfidfIndex] = lambda: index  # noqa: E731
    if elsewhere:
        opened = partial(TfidfIndex.from_bytes, file.read_bytes(), **filtered)

    def load(reading: ReadOptions) -> Work:
        index = opened()

        def work(shard: Shard, path: Path, progress: Progress) -> dict[str, Any]:
            source, rows, before = as_input(shard), shard.source.rows, 0

            def advance(done: int, total: int) -> None:
                nonlocal before
                now = rows * min(done, total) // max(total, 1)
                progress(now - before)
                before = now

            given = source, path, compression, shard.first_row, copies, form == "jsonl", drawing, index.reading(reading)
            report, (counted,) = in_thread(lambda shared: index._core.augment_part(*given, shared), advance)
            progress(rows - before)
            return {**report, "joined_lines": readers.joined_lines(source), "file": counted["xxh3"]}

        return work

    return Job("augment", suffix, settings, reading, load)


def encode_job(
    encoder: Encoder,
    arguments: dict[str, Any],
    *,
    suffix: str,
    batch_size: int,
    cache: str | None,
    reading: ReadOptions,
    elsewhere: bool,
) -> Job:
    """Returns the job of ``cse encode``; with ``elsewhere``, workers load the encoder with the same ``arguments``."""
    import numpy as np

    from ..data.corpus import Corpus
    from ..encoder.device import set_threads
    from ..encoder.encoder import Encoder
    from ..encoder.resolve import model_digest
    from ..encoder.vector_files import encode_to_file, write_vectors

    model = arguments["model"]
    settings = {
        "model": str(Path(model).resolve()) if Path(model).is_dir() else model,
        "pooler": arguments["pooler"],
        "digest": model_digest(encoder, prompt=""),
        "precision": encoder.precision,
        "prompt": encoder.prompt,
        "dims": arguments["dims"],
        "width": encoder.embedding_dim,
        "similarity": "dot" if encoder.similarity_name == "dot" else "cosine",
        "format": suffix[1:],
        **_errors(reading),
    }
    opened: Callable[[], Encoder] = lambda: encoder  # noqa: E731
    if elsewhere:
        opened = partial(Encoder, **{**arguments, "precision": encoder.precision})

    def load(reading: ReadOptions) -> Work:
        set_threads(reading["threads"])
        encoder = opened()
        fixed = {"model": model_digest(encoder), "precision": encoder.precision}

        def work(shard: Shard, path: Path, progress: Progress) -> dict[str, Any]:
            first = shard.first_row
            if not shard.source.rows:  # Corpus rejects empty files
                write_vectors(np.empty((0, encoder.embedding_dim), dtype=np.float32), path, first)
                return {"blank": 0, "joined_lines": 0, "repaired": 0, "file": _core.hash_file(shard.source.path)}
            corpus = Corpus.open(as_input(shard), cache=cache, **_errors(reading))
            file = corpus.files[0].xxh3
            key = {"file": file, "encoding_errors": reading["encoding_errors"], **fixed, "first_row": first}
            done = encode_to_file(encoder, corpus, path, key, batch_size=batch_size, first_row=first, progress=progress)
            return {"blank": done.blank, "joined_lines": corpus.joined_lines, "repaired": corpus.repaired, "file": file}

        return work

    return Job("encode", suffix, settings, reading, load)


def _errors(reading: ReadOptions) -> ReadOptions:
    return {"encoding_errors": reading["encoding_errors"], "max_line_bytes": reading["max_line_bytes"]}


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
    """As ``here``, with one task of a Ray cluster per item, in any order; Ray repeats the task of a lost worker.

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
    import ray

    work: Work = ray.get(reference)()
    return work
