"""Building an index and writing it to a folder, locally or on a Ray cluster; and the classes of results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike

import cse._core as _core

from ..cluster import RETRIES, connected, enter
from ..data import readers, tables
from ..data.readers import ReadOptions, SourceFile, reading_options
from ..errors import InputError
from .options import WordOptions, word_options
from .pieces import Pieces


@dataclass(frozen=True)
class IndexInfo:
    """Counts of the corpus that an index was built from."""

    documents: int
    """N, the number of rows that are not blank."""
    rows: int
    blank: int
    wordless: int
    """Documents without a term; they are counted in N."""
    tokens: int
    repaired: int
    """Rows with invalid UTF-8 (with ``encoding_errors="replace"``)."""
    terms: int


@dataclass(frozen=True)
class AugmentReport:
    """Counts of rows and words of a call to ``augment``."""

    rows: int
    """Rows written; ``cse augment`` writes ``--copies`` rows for each row that it reads."""
    blank: int
    unchanged: int
    """Rows in which no word was replaced, including blank rows."""
    words: int
    unseen: int
    """Words without a rank: not in the index, or removed by ``min_df`` or ``max_terms``."""
    replaced: int
    repaired: int

    @property
    def replacement_rate(self) -> float:
        """Fraction of the words that were replaced; 0 if there are no words."""
        return self.replaced / max(self.words, 1)

    @property
    def unseen_rate(self) -> float:
        """Fraction of the words that are unseen; 0 if there are no words."""
        return self.unseen / max(self.words, 1)


@dataclass(frozen=True)
class Replacement:
    """A replaced word. Spans are (start, end) character offsets with ``end`` exclusive; ranks start at 1."""

    old: str
    new: str
    span: tuple[int, int]
    new_span: tuple[int, int]
    p: float
    """Replacement probability of the word."""
    rank: int
    new_rank: int


@dataclass(frozen=True)
class ExplainedWord:
    """Statistics of one word of a sentence."""

    word: str
    seen: bool
    """False for a word without a rank: not in the index, or removed by ``min_df`` or ``max_terms``."""
    df: int
    """Document frequency; 0 if ``seen`` is False."""
    score: float
    """tf * idf in this sentence."""
    p: float
    """Replacement probability."""
    rank: int
    """Rank, from 1; if ``seen`` is False, the rank that a term with this score would have."""
    samples: list[str]
    replaceable: bool = True
    """With ``surface="keep"``, False for a word directly next to a letter, a digit or ``_``; its probability is 0."""


def count_shard(
    path: str, column: str | None, words: WordOptions, reading: ReadOptions, home: str
) -> tuple[bytes, int]:
    enter(home)  # makes relative paths valid; the index records paths as given
    inputs = readers.resolve([path], column if tables.is_table(path) else None)
    return _core.count(inputs, words, reading), readers.joined_lines(inputs)


def merge_shards(*shards: bytes) -> bytes:
    return _core.merge(list(shards)) if len(shards) > 1 else shards[0]


def count_on_cluster(
    paths: readers.Paths,
    column: str | None,
    words: WordOptions,
    reading: ReadOptions,
    counted: Callable[[int, int], object],
) -> tuple[bytes, int]:
    """Returns the index of files as bytes, and the number of fields with a line break; one task per file.

    The tasks are merged in a tree. Merging is associative, so the index equals one that is built locally.
    """
    files = [item if isinstance(item, str) else item.path for item in readers.resolve(paths, column)]
    if "-" in files:
        raise InputError("-: standard input cannot be read by --engine ray; name files that every worker can open")
    one_thread: ReadOptions = {**reading, "threads": 1}
    with connected() as ray:
        count = ray.remote(num_cpus=1, max_retries=RETRIES, num_returns=2)(count_shard)
        merge = ray.remote(num_cpus=1, max_retries=RETRIES)(merge_shards)
        tasks = [count.remote(path, column, words, one_thread, os.getcwd()) for path in files]
        level = [data for data, _ in tasks]
        while len(level) > 1:
            level = [merge.remote(*level[i : i + 2]) for i in range(0, len(level), 2)]
        waiting = [joined for _, joined in tasks]
        while waiting:
            ready, waiting = ray.wait(waiting, timeout=1)
            ray.get(ready)  # raises the error of a file as soon as it occurs
            counted(len(tasks) - len(waiting), len(tasks))
        return ray.get(level[0]), sum(ray.get([joined for _, joined in tasks]))


def prepared(reading: ReadOptions, pieces: Pieces | None) -> Mapping[str, object]:
    return reading if pieces is None else {**reading, "prepare": pieces.rows}


def build_index(
    paths: readers.Paths,
    folder: str | PathLike[str],
    *,
    column: str | None = None,
    matrix: bool = True,
    engine: str = "local",
    words: WordOptions | None = None,
    reading: ReadOptions | None = None,
    progress: _core.Progress | None = None,
    counted: Callable[[int, int], object] = lambda done, total: None,
) -> tuple[IndexInfo, list[SourceFile], int]:
    """Builds an index and writes it to a folder, with ``matrix`` (not with ``ray``) also the matrix as ``matrix.npz``.

    Returns counts of the corpus, the files that were read, and the number of table fields in which a line break was
    replaced by a space.
    """
    words, reading = word_options(**(words or {})), reading_options(**(reading or {}))
    pieces = words["pieces"]
    if pieces is not None and engine == "ray":
        raise InputError("--engine ray cannot be combined with --tokenizer wordpieces; use --engine local")
    if engine == "ray":
        data, joined = count_on_cluster(paths, column, words, reading, counted)
        counts, read = _core.save(folder, data)
    else:
        files = readers.resolve(paths, column)
        counts, read = _core.build_to(files, folder, words, matrix, prepared(reading, pieces), progress)
        joined = readers.joined_lines(files)
    if pieces is not None:
        pieces.save(folder)
    return IndexInfo(*counts), [SourceFile(**file) for file in read], joined
