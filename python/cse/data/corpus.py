"""The rows of a corpus, in memory or in memory-mapped files, and the rows that are held out from training.

Held-out rows are used for scores without labels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import numpy.typing as npt

from .. import _core, rng
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
        """Reads files of any size into memory."""
        options = reading_options(**reading)
        core = in_thread(lambda shared: _core.Rows.read(list(files), options, shared), lambda done, total: None)
        return cls(core, joined_lines(files))

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Corpus:
        """Returns an in-memory corpus of texts of any length; line breaks in the texts are replaced by spaces."""
        lines = _Lines(check_texts(texts))
        if not lines.content:
            raise InputError("texts: must not be empty; at least one sentence is needed")
        # The core treats ``lines`` as a table column. It hashes the file, but reads the rows with ``lines.next_block``.
        with tempfile.NamedTemporaryFile(prefix="cse-texts-") as file:
            file.write(lines.content)
            file.flush()
            lines.path = file.name
            corpus = cls(_core.Rows.read([lines], reading_options(max_line_bytes=2**40)), lines.joined)
        corpus._in_memory = True
        return corpus

    def __len__(self) -> int:
        """Returns the number of rows, including blank ones."""
        return len(self._core)

    def take(self, rows: npt.NDArray[np.integer] | Sequence[int]) -> list[str]:
        """Returns the texts of the given rows, in the given order."""
        return self._core.take([int(row) for row in rows])

    @property
    def folder(self) -> str | None:
        """Folder of the memory-mapped files; None if the rows are in memory."""
        return self._core.folder if isinstance(self._core, StoredRows) else None

    @property
    def files(self) -> list[SourceFile]:
        """The files that were read, in order."""
        files = [SourceFile(**file) for file in self._core.files]
        return [replace(file, path=IN_MEMORY, column=None) for file in files] if self._in_memory else files

    @property
    def repaired(self) -> int:
        """Number of rows in which invalid UTF-8 was replaced by U+FFFD."""
        return self._core.repaired

    def word_counts(self) -> npt.NDArray[np.uint32]:
        """Returns the number of whitespace-separated words of each row, ``(n,)`` uint32; 0 for a blank row."""
        return np.frombuffer(self._core.word_counts(), dtype="<u4")

    def filled(self) -> Rows:
        """Returns the numbers of the rows that are not blank, ascending; raises ``InputError`` if there are none."""
        rows: Rows = np.flatnonzero(self.word_counts() > 0)
        if not len(rows):
            names = ", ".join(file.path for file in self.files)
            column = self.files[0].column if self.files else None
            blank = f"all {len(self)} lines are blank"
            if column is not None:
                blank = f"column {column} is empty or null in all {len(self)} rows"
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


class _Lines:
    """Texts in memory, with the interface of ``cse.data.tables.Column``."""

    column = "text"

    def __init__(self, texts: Sequence[str]) -> None:
        self.path = ""
        lines, self.joined = lines_of(texts)
        # Lone surrogates, which UTF-8 cannot encode, become U+FFFD.
        self.content = lines.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        self._left = self.content

    def next_block(self, max_line_bytes: int) -> tuple[bytes, int] | None:
        block, self._left = self._left, b""
        return (block, len(block)) if block else None


HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
HELD_OUT_WORDS = 8


@dataclass(frozen=True)
class Split:
    """The split of a corpus into training rows and held-out rows, as ascending row numbers.

    ``blank`` is the number of rows of the corpus that were not split; if all rows with text are split, these are the
    blank rows.
    """

    train: Rows
    held_out: Rows
    blank: int
    repeats: int = 0
    """Number of rows with the same text as a held-out row, which are excluded from training."""


def hold_out(corpus: Corpus, seed: int, wanted: bool, rows: Rows | None = None) -> Split:
    """Splits a corpus into training rows and held-out rows for the label-free score.

    At most 2000 rows, and at most 5 % of the rows to split, are held out. They have at least 8 words and distinct
    texts, and are chosen by pseudo-random keys that depend on the seed and the row number. If fewer than two rows
    qualify, none is held out. Blank rows and rows with the same text as a held-out row are excluded from training.
    """
    words = corpus.word_counts()
    rows = corpus.filled() if rows is None else rows
    blank = len(words) - len(rows)
    if not wanted:
        return Split(rows, rows[:0], blank)
    hashes = corpus.hashes()
    kept = np.zeros(len(words), dtype=bool)
    kept[rows] = True
    held, same = _first_distinct(hashes, words, kept, min(HELD_OUT_ROWS, int(HELD_OUT_SHARE * len(rows))), seed)
    if len(held) < 2:
        return Split(rows, rows[:0], blank)
    kept[same] = False
    train = np.flatnonzero(kept)
    return Split(train, held, blank, len(rows) - len(train) - len(held))


def _first_distinct(
    hashes: npt.NDArray[np.uint64],
    words: npt.NDArray[np.uint32],
    splittable: npt.NDArray[np.bool_],
    count: int,
    seed: int,
) -> tuple[Rows, Rows]:
    """Returns up to ``count`` splittable rows of enough words and distinct texts, and all rows with the same texts.

    Those with the smallest random keys. Only as many rows as needed are examined, because sorting the hashes of ten
    million rows takes a minute.
    """
    eligible = np.flatnonzero(splittable & (words >= HELD_OUT_WORDS))
    keys = rng.bits(seed, 0, eligible, rng.HOLD_OUT)
    share = min(1.0, (2 * count + 100) / max(len(eligible), 1))  # fraction of the keys to examine
    while True:
        smallest = np.flatnonzero(keys < np.uint64(share * 2.0**64)) if share < 1 else np.arange(len(keys))
        candidates = eligible[smallest[np.argsort(keys[smallest], kind="stable")]]
        same = _with_hashes(hashes, hashes[candidates])
        same = same[splittable[same]]
        first = same[np.unique(hashes[same], return_index=True)[1]]
        chosen = candidates[np.isin(candidates, first)][:count]
        if len(chosen) == count or share == 1:
            return np.sort(chosen), same[np.isin(hashes[same], hashes[chosen])]
        share = min(1.0, 4 * share)


def _with_hashes(hashes: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> Rows:
    """Returns the ascending positions of the hashes that occur in ``wanted``, which is short.

    ``np.isin`` sorts all hashes that it is given, so a look-up table of the low 20 bits of ``wanted`` first excludes
    nearly all of them.
    """
    low = np.uint64(2**20 - 1)
    table = np.zeros(2**20, dtype=bool)
    table[wanted & low] = True
    places = np.flatnonzero(table[hashes & low])
    return places[np.isin(hashes[places], wanted)]
