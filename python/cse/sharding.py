"""Makes one part, a file of negatives or embeddings, from each file of a corpus, here or on a Ray cluster.

A part, such as ``part-00000.npy``, has its record next to it, ``part-00000.npy.json``: the settings and the file from
which it was made, its hash and counts. A part without a record is incomplete. A later call with the same
settings and files, and perhaps more files at the end, makes the parts that are missing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import cse._core as _core

from .background import in_thread
from .cluster import results
from .data import readers, tables
from .data.readers import ReadOptions, SourceFile
from .errors import InputError
from .io import dumps, holds_files, is_sealed, locked, naming, read_json, remove_leftovers, sealed, write_text
from .progress import counting
from .tfidf.index import TfidfIndex

if TYPE_CHECKING:
    from .encoder.encoder import Encoder

VERSION = 1
REMEDY = "use the same settings and files, or name a new folder"
Progress = Callable[[int], None]
File = tuple[str, str | None]
"""The path of a file of a corpus, and the column with the texts if it is a table."""


@dataclass(frozen=True)
class Shard:
    """A file of the corpus, together with the part that is made from it."""

    source: SourceFile
    part: str
    first_row: int
    """Row number, in the whole corpus, of the first row of the file."""
    made_from: dict[str, Any]
    """All that the content of the part depends on."""

    @property
    def input(self) -> list[str | tables.Column]:
        return readers.resolve([self.source.path], self.source.column)


class Record(TypedDict):
    """What a part was made from, its hash, and counts of its rows."""

    made_from: dict[str, Any]
    part_xxh3: str
    counted: dict[str, int]


Work = Callable[[Shard, Path, Progress], dict[str, Any]]
"""A function that makes the part of a shard at a path, and returns counts and, as ``file``, the hash of the input file
as it was read. Its third argument is called with the number of rows done since the last call."""


@dataclass(frozen=True)
class Job:
    """What makes the parts of a corpus."""

    kind: str
    suffix: str
    settings: dict[str, Any]
    """All settings that the content of the parts depends on, serialisable to JSON."""
    reading: ReadOptions
    load: Callable[[ReadOptions], Work]
    """Loads the index or model, and returns the function that makes a part."""


def find_shards(
    job: Job,
    files: Sequence[str],
    column: str | None,
    known: Sequence[SourceFile],
    ray: Any,
) -> list[Shard]:
    """Returns the shards of a corpus, whose rows are counted; ``ray`` is as in ``cse.cluster.results``.

    Files ``known`` from an index are not counted, and need not exist here if a cluster reads them.
    """
    items = readers.resolve(list(files), column)
    wanted: list[File] = [(item, None) if isinstance(item, str) else (item.path, item.column) for item in items]

    def is_current(source: SourceFile) -> bool:
        return os.path.getsize(source.path) == source.bytes if os.path.isfile(source.path) else ray is not None

    listed = {(file.path, file.column): file for file in known if is_current(file)}
    if unknown := list(dict.fromkeys(file for file in wanted if file not in listed)):
        with counting("counting rows", len(unknown), "files") as more:
            for file, outcome in results(partial(count_rows, job.reading), unknown, ray):
                if isinstance(outcome, Exception):
                    raise outcome
                listed[file] = outcome
                more(1)
    shards, first, digits = [], 0, max(5, len(str(len(wanted) - 1)))
    settings = json.loads(dumps({"version": VERSION, "command": job.kind, **job.settings}))
    for number, file in enumerate(wanted):
        made_from = {**settings, **asdict(listed[file]), "first_row": first}
        shards.append(Shard(listed[file], f"part-{number:0{digits}}{job.suffix}", first, made_from))
        first += listed[file].rows
    return shards


def count_rows(reading: ReadOptions, file: File) -> SourceFile:
    path, column = file
    (counted,) = _core.count_rows(readers.resolve([path], column), reading)
    return SourceFile(**{**counted, "path": path})


@contextmanager
def parts_folder(folder: Path, shards: Sequence[Shard]) -> Iterator[dict[str, Record]]:
    """Context manager that locks the folder of the parts, and yields the records of those that exist, by name.

    Raises ``InputError`` if the folder is in use, or holds other files, or parts of other settings or files.
    """
    if holds_files(folder) and not any(folder.glob("part-*")):
        raise InputError(f"-o {folder} holds files that are not parts; name a new folder")
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, f"-o {folder}: another process is making parts there; wait for it"):
        remove_leftovers(folder)
        # The last two are of an incomplete part, which ``cse encode`` resumes.
        own = {f"{shard.part}{suffix}" for shard in shards for suffix in ("", ".json", ".part", ".part.json")}
        for name in sorted({path.name for path in folder.glob("part-*")} - own):
            raise InputError(f"-o {folder}: {name} was made from another file, or in another format; {REMEDY}")
        try:
            yield {shard.part: record for shard in shards if (record := _record(folder, shard))}
        finally:
            with suppress(OSError):  # parts were made
                folder.rmdir()


def _record(folder: Path, shard: Shard) -> Record | None:
    """Returns the record of a part, or None if it must be made; raises ``InputError`` if it has other settings."""
    path = folder / shard.part
    if not Path(f"{path}.json").exists():
        return None
    record = read_json(f"{path}.json", Record, "; remove this file to make the part again")
    for name, value in shard.made_from.items():
        before = record["made_from"].get(name)
        if before != value and name != "model":  # it may be moved: its hash is compared instead
            raise InputError(f"-o {folder}: {shard.part} was made with {name} {before}, not {value}; {REMEDY}")
    whole = is_sealed(record) and path.exists() and _core.hash_file(path) == record["part_xxh3"]
    return record if whole else None


def make_parts(
    job: Job, shards: Sequence[Shard], folder: Path, ray: Any, gpus: float, progress: Progress
) -> Iterator[tuple[Shard, Record | Exception]]:
    """Makes parts in a folder; yields each shard with the record of its part, or the error.

    ``ray`` is as in ``cse.cluster.results``.
    """
    folder = folder.absolute()
    if ray is None:
        work = job.load(job.reading)
        yield from results(lambda shard: make(work, shard, folder, progress), shards)
        return
    threads = max(job.reading["threads"], 1)
    stored = ray.put(partial(job.load, {**job.reading, "threads": threads}))
    function = partial(_make_there, [stored], folder)  # in a list, so that Ray does not load it for each task
    for shard, outcome in results(function, shards, ray, threads, gpus):
        progress(0 if isinstance(outcome, Exception) else shard.source.rows)
        yield shard, outcome


def make(work: Work, shard: Shard, folder: Path, progress: Progress) -> Record:
    """Makes the part of a shard, and returns its record, which is also written next to it.

    Raises ``InputError`` if the file has changed since its rows were counted; the part is then deleted.
    """
    path = folder / shard.part
    counted = work(shard, path, progress)
    try:
        check_unchanged(shard, counted.pop("file"))
    except InputError:
        path.unlink(missing_ok=True)
        raise
    record: Record = {"made_from": shard.made_from, "part_xxh3": _core.hash_file(path), "counted": counted}
    write_text(f"{path}.json", dumps(sealed(record), indent=1) + "\n")
    return record


def check_unchanged(shard: Shard, hashed: str) -> None:
    if hashed != shard.source.xxh3:
        raise InputError(
            f"{shard.source.path}: was changed after its rows were counted; if that was done by cse build-tfidf, build "
            "the index again"
        )


def _make_there(stored: list[Any], folder: Path, shard: Shard) -> Record:
    return make(_loaded(stored[0]), shard, folder, lambda rows: None)


@lru_cache(1)
def _loaded(reference: Any) -> Work:
    import ray

    work: Work = ray.get(reference)()
    return work


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

    ``file`` holds the index, and ``filtered`` the arguments with which it was opened. With ``elsewhere``, the job
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
            source, rows, before = shard.input, shard.source.rows, 0

            def advance(done: int, total: int) -> None:
                nonlocal before
                now = rows * min(done, total) // max(total, 1)
                progress(now - before)
                before = now

            given = source, path, copies, form == "jsonl", drawing, index.reading(reading)
            part = compression, shard.first_row
            report, (counted,) = in_thread(lambda shared: index._core.augment_files(*given, shared, part), advance)
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

    from .data.corpus import Corpus
    from .encoder.device import set_threads
    from .encoder.encoder import Encoder
    from .encoder.vector_files import encode_to_file, made_by, write_vectors

    model = arguments["model"]
    settings = {
        "model": str(Path(model).resolve()) if Path(model).is_dir() else model,
        "pooler": arguments["pooler"],
        "dims": arguments["dims"],
        **made_by(encoder),
        "format": suffix[1:],
        **_errors(reading),
    }
    opened: Callable[[], Encoder] = lambda: encoder  # noqa: E731
    if elsewhere:
        opened = partial(Encoder, **{**arguments, "precision": encoder.precision})

    def load(reading: ReadOptions) -> Work:
        set_threads(reading["threads"])
        encoder = opened()

        def work(shard: Shard, path: Path, progress: Progress) -> dict[str, Any]:
            first = shard.first_row
            if not shard.source.rows:  # Corpus rejects empty files
                write_vectors(np.empty((0, encoder.embedding_dim), dtype=np.float32), path, first)
                return {"blank": 0, "joined_lines": 0, "repaired": 0, "file": _core.hash_file(shard.source.path)}
            corpus = Corpus.open(shard.input, cache=cache, **_errors(reading))
            file = corpus.files[0].xxh3
            check_unchanged(shard, file)
            key = {name: value for name, value in shard.made_from.items() if name != "model"}
            done = encode_to_file(encoder, corpus, path, key, batch_size=batch_size, first_row=first, progress=progress)
            return {"blank": done.blank, "joined_lines": corpus.joined_lines, "repaired": corpus.repaired, "file": file}

        return work

    return Job("encode", suffix, settings, reading, load)


def _errors(reading: ReadOptions) -> ReadOptions:
    return {"encoding_errors": reading["encoding_errors"], "max_line_bytes": reading["max_line_bytes"]}
