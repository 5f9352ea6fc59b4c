"""The sentences of a run: rows in memory, which of them are trained on, which are held out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _core
from .. import rng as keyed
from ..data import readers as inputs
from ..errors import InputError
from ..tfidf.index import SourceFile, TfidfIndex
from ..tfidf.options import MAX_LINE_BYTES, reading_options
from .readers import Column

__all__ = ["Corpus", "Split", "hold_out", "open_corpus"]

HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
HELD_OUT_WORDS = 8

Rows = npt.NDArray[np.int64]


class Corpus:
    """Text in memory, one row per line, numbered as the TF-IDF index numbers them."""

    def __init__(self, core: _core.Rows, joined_lines: int) -> None:
        self._core = core
        self.joined_lines = joined_lines
        """Fields of a table that held a line break, which became a space."""

    @classmethod
    def read(
        cls,
        files: Sequence[str | Column],
        *,
        encoding_errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> Corpus:
        """Reads what ``cse.inputs.resolve`` gave, in order; raises ``InputError`` or ``OSError``."""
        reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes)
        core = _core.Rows.read(list(files), reading)
        return cls(core, inputs.joined_lines(files))

    def __len__(self) -> int:
        """Rows, blank ones included."""
        return len(self._core)

    def take(self, rows: npt.NDArray[np.integer] | Sequence[int]) -> list[str]:
        """The texts of these rows."""
        return self._core.take([int(row) for row in rows])

    @property
    def files(self) -> list[SourceFile]:
        """What was read."""
        return [SourceFile(*file) for file in self._core.files]

    @property
    def repaired(self) -> int:
        """Rows with bytes that were not UTF-8."""
        return self._core.repaired

    def word_counts(self) -> npt.NDArray[np.uint32]:
        """Words between white space of each row; 0 is a blank row."""
        return np.frombuffer(self._core.word_counts(), dtype="<u4")

    def filled(self) -> Rows:
        """The rows that are not blank; ``InputError`` if there are none."""
        rows = np.flatnonzero(self.word_counts()).astype(np.int64)
        if not len(rows):
            names = ", ".join(file.path for file in self.files)
            raise InputError(f"{names}: all {len(self)} lines are blank; at least one sentence is needed")
        return rows

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Equal for equal rows."""
        return np.frombuffer(self._core.hashes(), dtype="<u8")


@dataclass(frozen=True)
class Split:
    """Row numbers, ascending."""

    train: Rows
    held_out: Rows
    blank: int


def open_corpus(
    paths: Sequence[str],
    index: TfidfIndex | None,
    *,
    column: str | None = None,
    encoding_errors: str,
    max_line_bytes: int,
) -> Corpus:
    """Opens the files given, or those the index was built from.

    A file that the index knows must hold the bytes it held when it was indexed.
    """
    if not paths:
        if index is None:
            raise InputError("CORPUS: no text file was given; name one, or build an index with cse build-tfidf")
        if not index.files or any(file.path == "-" for file in index.files):
            raise InputError(
                "CORPUS: the index was built from standard input or from memory; name the text file to train on"
            )
        files: list[str | Column] = [
            file.path if file.column is None else Column(file.path, file.column) for file in index.files
        ]
    else:
        files = inputs.resolve(paths, column)
    corpus = Corpus.read(files, encoding_errors=encoding_errors, max_line_bytes=max_line_bytes)
    known: dict[str, list[SourceFile]] = {}
    for file in index.files if index else []:
        known.setdefault(os.path.realpath(file.path), []).append(file)
    for file in corpus.files:
        indexed = known.get(os.path.realpath(file.path))
        if indexed and file.xxh3 not in [other.xxh3 for other in indexed]:
            raise InputError(
                f"{file.path}: the file has changed since it was indexed; build the index again with cse build-tfidf"
            )
        if indexed and file.column not in [other.column for other in indexed]:
            raise InputError(
                f"--column: {file.path} was indexed by its column {indexed[0].column}, not {file.column}; "
                "build an index of the column you train on"
            )
    return corpus


def hold_out(corpus: Corpus, seed: int, wanted: bool) -> Split:
    """Chooses the rows of the label-free score: min(2000, 5 %) distinct rows of at least 8 words.

    They are chosen by a hash of seed and row; no row with the same text is trained on. Blank rows are never
    trained on.
    """
    words = corpus.word_counts()
    rows = corpus.filled()
    blank = len(words) - len(rows)
    if not wanted:
        return Split(rows, rows[:0], blank)
    hashes = corpus.hashes()
    _, first = np.unique(hashes[rows], return_index=True)
    distinct = rows[np.sort(first)]
    eligible = distinct[words[distinct] >= HELD_OUT_WORDS]
    count = min(HELD_OUT_ROWS, int(HELD_OUT_SHARE * len(rows)), len(eligible))
    if count < 2:
        return Split(rows, rows[:0], blank)
    order = np.argsort(keyed.bits(seed, 0, eligible, keyed.HOLD_OUT), kind="stable")
    held = np.sort(eligible[order[:count]])
    return Split(rows[~np.isin(hashes[rows], hashes[held])], held, blank)
