"""The sentences of a run: rows in memory, and which of them are trained on or held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import _core, rng
from ..errors import InputError
from .readers import Column, joined_lines
from .reading import MAX_LINE_BYTES, SourceFile, reading_options

__all__ = ["Corpus", "Split", "hold_out"]

HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
HELD_OUT_WORDS = 8

Rows = npt.NDArray[np.int64]


class Corpus:
    """Text in memory, one row per line, with the row numbers of the TF-IDF index."""

    def __init__(self, core: _core.Rows, joined_lines: int) -> None:
        self._core = core
        self.joined_lines = joined_lines
        """Fields of a table in which a line break was replaced by a space."""

    @classmethod
    def read(
        cls,
        files: Sequence[str | Column],
        *,
        encoding_errors: str = "strict",
        max_line_bytes: int = MAX_LINE_BYTES,
        threads: int = 0,
    ) -> Corpus:
        """Reads the files that ``cse.data.readers.resolve`` returned; raises ``InputError`` or ``OSError``."""
        reading = reading_options(encoding_errors=encoding_errors, max_line_bytes=max_line_bytes, threads=threads)
        core = _core.Rows.read(list(files), reading)
        return cls(core, joined_lines(files))

    def __len__(self) -> int:
        """Rows, blank ones included."""
        return len(self._core)

    def take(self, rows: npt.NDArray[np.integer] | Sequence[int]) -> list[str]:
        """The texts of these rows."""
        return self._core.take([int(row) for row in rows])

    @property
    def files(self) -> list[SourceFile]:
        """The files that were read."""
        return [SourceFile(*file) for file in self._core.files]

    @property
    def repaired(self) -> int:
        """Rows with bytes that were not UTF-8."""
        return self._core.repaired

    def word_counts(self) -> npt.NDArray[np.uint32]:
        """Words of each row, separated by white space; 0 for a blank row."""
        return np.frombuffer(self._core.word_counts(), dtype="<u4")

    def filled(self) -> Rows:
        """The rows that are not blank; ``InputError`` if there are none."""
        rows = np.flatnonzero(self.word_counts()).astype(np.int64)
        if not len(rows):
            names = ", ".join(file.path for file in self.files)
            raise InputError(f"{names}: all {len(self)} lines are blank; at least one sentence is needed")
        return rows

    def hashes(self) -> npt.NDArray[np.uint64]:
        """64-bit hashes of the rows; equal rows have equal hashes."""
        return np.frombuffer(self._core.hashes(), dtype="<u8")


@dataclass(frozen=True)
class Split:
    """Row numbers, ascending."""

    train: Rows
    held_out: Rows
    blank: int
    repeats: int = 0
    """Rows with the text of a held-out row, which are not trained on."""


def hold_out(corpus: Corpus, seed: int, wanted: bool) -> Split:
    """Chooses the held-out rows of the label-free score: min(2000, 5 %) distinct rows of at least 8 words.

    The choice depends on seed and row number. No row with the text of a held-out row is trained on, and no blank row.
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
    order = np.argsort(rng.bits(seed, 0, eligible, rng.HOLD_OUT), kind="stable")
    held = np.sort(eligible[order[:count]])
    train = rows[~np.isin(hashes[rows], hashes[held])]
    return Split(train, held, blank, len(rows) - len(train) - len(held))
