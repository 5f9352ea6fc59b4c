"""The rows of a corpus, in memory or in memory-mapped files, and those held out from training for unlabelled scores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

import cse._core as _core

from .. import rng
from ..background import ProgressCallback, in_thread
from ..errors import InputError, check_texts
from .cache import StoredRows, count_repeats, read_small
from .readers import ReadOptions, SourceFile, joined_lines, reading_options
from .tables import Column, lines_of

# Stands in place of a file path for texts given to ``Corpus.from_texts``, including in the configuration of a run.
IN_MEMORY = "(texts in memory)"


Rows = npt.NDArray[np.int64]


class Corpus:
    """The rows of a corpus, with the same row numbers as in its TF-IDF index."""

    def __init__(self, rows: _core.Rows | StoredRows, joined_lines: int) -> None:
        self._core = rows
        self.joined_lines = joined_lines
        """Number of table fields, or of texts in memory, in which a line break was replaced by a space."""
        self._in_memory = False

    @classmethod
    def open(
        cls,
        files: Sequence[str | Column],
        *,
        cache: str | None = None,
        progress: ProgressCallback | None = None,
        **reading: Unpack[ReadOptions],
    ) -> Corpus:
        """Opens files. A small corpus is read into memory, and a large one is memory-mapped; see ``read_small``."""
        options = reading_options(**reading)
        if (rows := read_small(files, options)) is not None:
            return cls(rows, joined_lines(files))
        files = [file if isinstance(file, str) else Column(file.path, file.column) for file in files]
        stored = StoredRows.open(files, options, cache, progress)
        return cls(stored, stored.joined_lines)

    @classmethod
    def read(cls, files: Sequence[str | Column], **reading: Unpack[ReadOptions]) -> Corpus:
        options = reading_options(**reading)
        core = in_thread(lambda shared: _core.Rows.read(list(files), options, shared), lambda done, total: None)
        return cls(core, joined_lines(files))

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Corpus:
        """Returns an in-memory corpus of texts of any length; line breaks in the texts are replaced by spaces."""
        lines, joined = lines_of(check_texts(texts))
        if not lines:
            raise InputError("texts: must not be empty; at least one sentence is needed")
        # Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
        content = lines.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        blocks = iter([(content, len(content))])
        # The core treats the texts as a table column: it hashes the file, but reads the rows with ``next_block``.
        with tempfile.NamedTemporaryFile(prefix="cse-texts-") as file:
            file.write(content)
            file.flush()
            column: Any = SimpleNamespace(path=file.name, column="text", next_block=lambda most: next(blocks, None))
            corpus = cls(_core.Rows.read([column], reading_options(max_line_bytes=2**40)), joined)
        corpus._in_memory = True
        return corpus

    def __len__(self) -> int:
        return len(self._core)

    def take(self, rows: npt.NDArray[np.integer] | Sequence[int]) -> list[str]:
        return self._core.take([int(row) for row in rows])

    @property
    def folder(self) -> str | None:
        return self._core.folder if isinstance(self._core, StoredRows) else None

    @property
    def files(self) -> list[SourceFile]:
        files = [SourceFile(**file) for file in self._core.files]
        return [replace(file, path=IN_MEMORY, column=None) for file in files] if self._in_memory else files

    @property
    def repaired(self) -> int:
        return self._core.repaired

    def word_counts(self) -> npt.NDArray[np.uint32]:
        """Returns the number of whitespace-separated words of each row, ``(n,)`` uint32; 0 for a blank row."""
        return np.frombuffer(self._core.word_counts(), dtype="<u4")

    def filled(self) -> Rows:
        """Returns the numbers of the rows that are not blank, ascending; raises ``InputError`` if there are none."""
        rows: Rows = np.flatnonzero(self.word_counts() > 0)
        if not len(rows):
            column = self.files[0].column
            table = f"column {column} is empty or null in all {len(self)} rows"
            blank = f"all {len(self)} lines are blank" if column is None else table
            names = ", ".join(file.path for file in self.files)
            raise InputError(f"{names}: {blank}; at least one sentence is needed")
        return rows

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Returns a 64-bit hash of the text of each row, ``(n,)`` uint64."""
        return np.frombuffer(self._core.hashes(), dtype="<u8")

    def repeats(self) -> int:
        """Returns the number of non-blank rows that repeat the text of an earlier row."""
        if isinstance(self._core, StoredRows):
            return self._core.repeats
        return count_repeats(self.hashes(), self.word_counts())


HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
HELD_OUT_WORDS = 8


@dataclass(frozen=True)
class Split:
    """The split of a corpus into training rows and held-out rows, as ascending row numbers."""

    train: Rows
    held_out: Rows
    blank: int
    """Number of rows that were not split: blank ones, and those not asked for."""
    repeats: int = 0
    """Number of rows with the same text as a held-out row, which are excluded from training."""


def hold_out(
    corpus: Corpus, seed: int, wanted: bool, rows: Rows | None = None, spared: npt.NDArray[np.bool_] | None = None
) -> Split:
    """Splits a corpus into training rows and held-out rows for the label-free score.

    At most 2000 rows, and at most 5 % of the rows to split, are held out. They have at least 8 words and distinct
    texts, are not ``spared`` (``(N,)``), and have the smallest pseudo-random keys. If fewer than two rows qualify, none
    is held out. Blank rows and rows with the same text as a held-out row are excluded from training.
    """
    words = corpus.word_counts()
    rows = corpus.filled() if rows is None else rows
    blank = len(words) - len(rows)
    if not wanted:
        return Split(rows, rows[:0], blank)
    hashes = corpus.hashes()
    kept = np.zeros(len(words), dtype=bool)
    kept[rows] = True
    eligible = np.flatnonzero(kept & (words >= HELD_OUT_WORDS) & (True if spared is None else ~spared))
    distinct = np.sort(eligible[np.unique(hashes[eligible], return_index=True)[1]])
    order = np.argsort(rng.bits(seed, 0, distinct, rng.HOLD_OUT), kind="stable")
    held = np.sort(distinct[order[: min(HELD_OUT_ROWS, int(HELD_OUT_SHARE * len(rows)))]])
    if len(held) < 2:
        return Split(rows, rows[:0], blank)
    kept &= ~np.isin(hashes, hashes[held])
    train = np.flatnonzero(kept)
    return Split(train, held, blank, len(rows) - len(train) - len(held))
