"""Jobs that make one part, a file of negatives or embeddings, from each file of a corpus.

A job holds only settings, so that it can be sent to other processes, where ``worker`` loads the index or model once.
``find_sources`` finds the files of a corpus and their row counts, which are taken from an index or determined by
counting.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from .. import _core
from ..background import in_thread
from ..data import readers, tables
from ..data.readers import ReadOptions, SourceFile
from ..errors import InputError
from ..io import dumps, write_text
from ..tfidf.build import AugmentReport
from ..tfidf.index import TfidfIndex
from .parts import Shard

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder


def find_sources(
    files: Sequence[str],
    column: str | None,
    known: Sequence[SourceFile],
    index: str,
    count: Callable[[Sequence[tuple[str, str | None]]], list[SourceFile]],
    *,
    elsewhere: bool,
) -> list[SourceFile]:
    """Returns the files of a corpus with their row counts.

    Args:
        files: Paths and patterns.
        column: Column with the texts, for files that are tables.
        known: The files that the index lists.
        index: Folder of the index, for messages.
        count: Counts the rows of files, given as paths and columns; called at most once, with the files whose counts
            are not taken from the index.
        elsewhere: Whether the files are read on other machines; files in the index then need not exist here.

    Raises:
        InputError: If the size of a file differs from its size in the index, or if a file cannot be read.
    """
    items = readers.resolve(list(files), column)
    wanted = [(item, None) if isinstance(item, str) else (item.path, item.column) for item in items]
    by_path = {(file.path, file.column): file for file in known}
    listed: dict[tuple[str, str | None], SourceFile] = {}
    for path, name in wanted:
        source = by_path.get((path, name))
        if source is None or not (elsewhere or os.path.isfile(path)):
            continue
        if os.path.isfile(path) and os.path.getsize(path) != source.bytes:
            raise InputError(
                f"{path}: has {os.path.getsize(path):,} bytes, but had {source.bytes:,} when the index {index} was "
                "built; build it again from these files"
            )
        listed[path, name] = source
    unknown = list(dict.fromkeys(key for key in wanted if key not in listed))
    if unknown:
        listed.update(zip(unknown, count(unknown), strict=True))
    return [listed[key] for key in wanted]


Progress = Callable[[int], None]
Work = Callable[[Shard, Path, Progress], dict[str, Any]]
"""A function that makes the part of a shard at a path, and returns counts.

Its third argument is called with the number of rows done since the last call. The counts include ``file``, the hash of
the input file as it was read.
"""


def as_input(shard: Shard) -> list[str | tables.Column]:
    """Returns the file of a shard as an input of the Rust core; raises ``InputError`` if it cannot be opened."""
    return readers.resolve([shard.source.path], shard.source.column)


def make(work: Work, shard: Shard, folder: Path, progress: Progress) -> None:
    """Makes the part of a shard, and writes its counts next to it.

    Raises ``InputError`` if the file has changed since its rows were counted; the part is then deleted.
    """
    path = folder / shard.part
    counted = work(shard, path, progress)
    if counted.pop("file") != shard.source.xxh3:
        path.unlink(missing_ok=True)
        raise InputError(
            f"{shard.source.path}: was changed after its rows were counted; make the parts in a new folder"
        )
    record = {
        "xxh3": shard.source.xxh3,
        "first_row": shard.first_row,
        "part_bytes": path.stat().st_size,
        "part_xxh3": _core.hash_file(path),
        "counted": counted,
    }
    write_text(f"{path}.json", dumps(record) + "\n")


@dataclass(frozen=True)
class AugmentJob:
    """The job of ``cse augment``: makes negatives for the rows of a file."""

    kind: ClassVar[str] = "augment"

    tfidf: str
    min_df: int
    max_terms: int | None
    drawing: dict[str, Any]
    """Complete drawing options; see ``TfidfIndex.draw_options``."""
    copies: int
    form: str
    """``text`` or ``jsonl``."""
    compression: str
    """``none``, ``gz`` or ``zst``."""
    reading: ReadOptions

    @property
    def suffix(self) -> str:
        """Suffix of the names of the parts."""
        plain = ".txt" if self.form == "text" else ".jsonl"
        return plain if self.compression == "none" else f"{plain}.{self.compression}"

    @property
    def _index_file(self) -> Path:
        return Path(self.tfidf) / "index.safetensors"

    def settings(self) -> dict[str, Any]:
        """Returns the settings that the parts depend on; the index is represented by its hash."""
        return {
            "index": _core.hash_file(self._index_file),
            "min_df": self.min_df,
            "max_terms": self.max_terms,
            **self.drawing,
            "copies": self.copies,
            "format": self.form,
            "compression": self.compression,
            "encoding_errors": self.reading["encoding_errors"],
            "max_line_bytes": self.reading["max_line_bytes"],
        }

    def shared(self) -> bytes | None:
        """Returns the bytes of the index, which every worker needs and a cluster stores once."""
        return self._index_file.read_bytes()

    def worker(self, shared: bytes | None, threads: int) -> Work:
        """Opens the index, from ``shared`` or else from its folder, and returns the function that makes a part.

        ``threads=0`` uses all cores.
        """
        if shared is None:
            index = TfidfIndex.open(self.tfidf, min_df=self.min_df, max_terms=self.max_terms)
        else:
            index = TfidfIndex.from_bytes(shared, min_df=self.min_df, max_terms=self.max_terms)
        reading = index.reading({**self.reading, "threads": threads})

        def work(shard: Shard, path: Path, progress: Progress) -> dict[str, Any]:
            source, rows, before = as_input(shard), shard.source.rows, 0

            def advance(done: int, total: int) -> None:
                nonlocal before
                now = rows * min(done, total) // max(total, 1)
                progress(now - before)
                before = now

            report, (file,) = in_thread(
                lambda shared: index._core.augment_part(
                    source,
                    path,
                    self.compression,
                    shard.first_row,
                    self.copies,
                    self.form == "jsonl",
                    self.drawing,
                    reading,
                    shared,
                ),
                advance,
            )
            progress(rows - before)
            counts = AugmentReport(**report)
            return {**asdict(counts), "joined_lines": readers.joined_lines(source), "file": file["xxh3"]}

        return work


@dataclass(frozen=True)
class EncodeJob:
    """The job of ``cse encode``: makes embeddings of the rows of a file."""

    kind: ClassVar[str] = "encode"

    model: str
    precision: str
    """``fp32`` or ``bf16``."""
    reading: ReadOptions
    suffix: str = ".npy"
    pooler: str | None = None
    prompt: str | None = None
    dims: int | None = None
    device: str = "auto"
    batch_size: int = 64
    cache: str | None = None

    def encoder(self, device: str | None = None) -> Encoder:
        """Loads the job's encoder, on ``device`` instead of the job's device if it is given."""
        from ..encoder.encoder import Encoder

        settings = {name: getattr(self, name) for name in ("pooler", "precision", "prompt", "dims")}
        return Encoder(self.model, device=device or self.device, **settings)

    def settings(self, encoder: Encoder) -> dict[str, Any]:
        """Returns the settings that the parts depend on or that a search needs; ``encoder`` is the job's encoder."""
        from ..encoder.digest import model_digest

        return {
            "model": str(Path(self.model).resolve()) if Path(self.model).is_dir() else self.model,
            "pooler": self.pooler,
            "digest": model_digest(encoder, prompt=""),
            "precision": self.precision,
            "prompt": encoder.prompt,
            "dims": self.dims,
            "width": encoder.embedding_dim,
            "similarity": "dot" if encoder.similarity_name == "dot" else "cosine",
            "format": self.suffix[1:],
            "encoding_errors": self.reading["encoding_errors"],
            "max_line_bytes": self.reading["max_line_bytes"],
        }

    def shared(self) -> bytes | None:
        """Returns None, because workers load the model themselves."""
        return None

    def worker(self, shared: bytes | None, threads: int) -> Work:
        """Loads the model, and returns the function that makes a part; ``threads=0`` uses all cores."""
        import numpy as np

        from ..data.corpus import Corpus
        from ..encoder.device import set_threads
        from ..encoder.digest import model_digest
        from ..encoder.vector_files import encode_to_file, write_vectors

        set_threads(threads)
        encoder = self.encoder()
        digest = model_digest(encoder)
        errors, longest = self.reading["encoding_errors"], self.reading["max_line_bytes"]

        def work(shard: Shard, path: Path, progress: Progress) -> dict[str, Any]:
            if not shard.source.rows:  # Corpus rejects empty files
                write_vectors(np.empty((0, encoder.embedding_dim), dtype=np.float32), path, shard.first_row)
                return {"blank": 0, "joined_lines": 0, "repaired": 0, "file": _core.hash_file(shard.source.path)}
            corpus = Corpus.open(as_input(shard), encoding_errors=errors, max_line_bytes=longest, cache=self.cache)
            file = corpus.files[0].xxh3
            key = {
                "file": file,
                "encoding_errors": errors,
                "model": digest,
                "precision": self.precision,
                "first_row": shard.first_row,
            }
            done = encode_to_file(
                encoder, corpus, path, key, batch_size=self.batch_size, first_row=shard.first_row, progress=progress
            )
            return {"blank": done.blank, "joined_lines": corpus.joined_lines, "repaired": corpus.repaired, "file": file}

        return work


Job = AugmentJob | EncodeJob
