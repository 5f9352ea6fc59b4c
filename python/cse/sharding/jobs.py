"""Jobs that make one part, a file of negatives or embeddings, from each file of a corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..background import in_thread
from ..data import readers, tables
from ..data.readers import ReadOptions, SourceFile
from ..errors import InputError
from ..io import dumps, write_text
from ..progress import counting
from ..tfidf.index import TfidfIndex
from .parts import Shard

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

File = tuple[str, str | None]
"""The path of a file of a corpus, and the column with the texts if it is a table."""
Progress = Callable[[int], None]
Work = Callable[[Shard, Path, Progress], dict[str, Any]]
"""A function that makes the part of a shard at a path, and returns counts and, as ``file``, the hash of the input file
as it was read. Its third argument is called with the number of rows done since the last call."""


@dataclass(frozen=True)
class Job:
    """What makes the parts of a corpus."""

    kind: str
    suffix: str
    settings: dict[str, Any]
    """All settings that the content of the parts depends on or that a search needs, serialisable to JSON."""
    reading: ReadOptions
    load: Callable[[ReadOptions], Work]
    """Loads the index or model, and returns the function that makes a part."""


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
    """Returns the files of a corpus with their row counts; ``each`` (``engines``) calls the count of others than the
    ``known`` ones of the folder ``index``, which need not exist here if they are read ``elsewhere``.
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
    opened = partial(TfidfIndex.from_bytes, file.read_bytes(), **filtered) if elsewhere else lambda: index

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
    opened = partial(Encoder, **{**arguments, "precision": encoder.precision}) if elsewhere else lambda: encoder

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
