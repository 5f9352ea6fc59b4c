"""The rows of a corpus, in memory or in memory-mapped files, and those held out from training for unlabelled scores."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

import cse._core as _core

from .. import rng
from ..background import ProgressCallback, in_thread
from ..errors import InputError, check_texts
from ..identity import Keys, common_keys, first_rows
from ..io import repaired
from .cache import StoredRows, read_small
from .readers import ReadOptions, SourceFile, joined_lines, reading_options
from .tables import MAX_LINE_BYTES, Column, lines_of

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
        self.max_line_bytes = MAX_LINE_BYTES
        """The limit with which the files were read, which is that of their other columns too."""

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
            return cls(rows, joined_lines(files))._limited(options)
        files = [file if isinstance(file, str) else Column(file.path, file.column) for file in files]
        stored = StoredRows.open(files, options, cache, progress)
        return cls(stored, stored.joined_lines)._limited(options)

    @classmethod
    def read(cls, files: Sequence[str | Column], **reading: Unpack[ReadOptions]) -> Corpus:
        options = reading_options(**reading)
        core = in_thread(lambda shared: _core.Rows.read(list(files), options, shared), lambda done, total: None)
        return cls(core, joined_lines(files))._limited(options)

    def _limited(self, options: ReadOptions) -> Corpus:
        self.max_line_bytes = options["max_line_bytes"]
        return self

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Corpus:
        """Returns an in-memory corpus of texts of any length; line breaks in the texts are replaced by spaces."""
        lines, joined = lines_of(check_texts(texts))
        if not lines:
            raise InputError("texts: must not be empty; at least one sentence is needed")
        content = repaired(lines).encode()
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

    def row_keys(self) -> npt.NDArray[np.uint64]:
        """Returns the row key of each row, ``(n,)`` uint64; see ``cse.identity``."""
        return np.frombuffer(self._core.keys(), dtype="<u8")

    def repeats(self) -> int:
        """Returns the number of non-blank rows that have the row key of an earlier row."""
        keys = np.sort(self.row_keys()[self.word_counts() > 0])  # np.unique is many times slower for millions of rows
        return int((keys[1:] == keys[:-1]).sum())


HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
HELD_OUT_WORDS = 8
HELD_OUT_OF_UNLABELLED = 0.25
"""Most rows that are held out if labels teach, as a fraction of the rows without a label."""
NOT_TRAINED_SHARE = 0.2
"""Most rows that are held out or left out because they are joined to a held-out row, as a fraction of the rows."""


@dataclass(frozen=True)
class Split:
    """The split of a corpus into training rows and held-out rows, as ascending row numbers."""

    train: Rows
    held_out: Rows
    blank: int
    """Number of rows that were not split: blank ones, and those not asked for."""
    joined: int = 0
    """Number of rows that share a text with a held-out row, which are excluded from training."""
    common: Keys = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    """Row keys of the texts that so many rows have that they join none; see ``cse.identity.common_keys``."""


def hold_out(
    corpus: Corpus,
    seed: int,
    wanted: bool,
    rows: Rows | None = None,
    others: Sequence[Corpus] = (),
    spared: npt.NDArray[np.bool_] | None = None,
) -> Split:
    """Splits a corpus into training rows and held-out rows for the label-free score.

    At most 2000 rows, and at most 5 % of the rows to split, are held out; if labels teach the rows ``spared``, at most
    a quarter of the others, of which an epoch takes only some. They have at least 8 words and distinct texts, and have
    the smallest pseudo-random keys. If fewer than two rows qualify, none is held out. Excluded from
    training are blank rows, and rows that share a text with a held-out row, in the corpus or in ``others`` (the
    positives of labelled pairs); texts are compared by their row keys (``cse.identity``). A text that is common joins
    no rows, and a row of the corpus with such a text is not held out. Fewer rows are held out if they and the rows
    joined to them would be more than a fifth of the rows.
    """
    words = corpus.word_counts()
    rows = corpus.filled() if rows is None else rows
    blank = len(words) - len(rows)
    if not wanted:
        return Split(rows, rows[:0], blank)
    columns = [each.row_keys()[rows] for each in (corpus, *others)]
    once = [columns[0], *(column[column != columns[0]] for column in columns[1:])]  # a text once for each of its rows
    common = common_keys(np.concatenate(once), len(rows))
    eligible = np.flatnonzero((words[rows] >= HELD_OUT_WORDS) & ~np.isin(columns[0], common))
    if spared is not None:
        eligible = eligible[~spared[rows[eligible]]]
    distinct = eligible[first_rows(columns[0][eligible])]
    order = np.argsort(rng.bits(seed, 0, rows[distinct], rng.HOLD_OUT), kind="stable")
    most = HELD_OUT_SHARE * len(rows) if spared is None else HELD_OUT_OF_UNLABELLED * len(distinct)
    chosen = distinct[order[: min(HELD_OUT_ROWS, int(most))]]  # positions in rows
    first = first_joined([column[chosen] for column in columns], columns, common)
    first[chosen] = np.minimum(first[chosen], np.arange(len(chosen)))
    gone = np.cumsum(np.bincount(first, minlength=len(chosen) + 1)[: len(chosen)])  # by number of rows held out
    held = chosen[: np.searchsorted(gone, NOT_TRAINED_SHARE * len(rows), "right")]
    if len(held) < 2:
        return Split(rows, rows[:0], blank, common=common)
    train = rows[first >= len(held)]
    return Split(train, np.sort(rows[held]), blank, len(rows) - len(train) - len(held), common)


def first_joined(chosen: Sequence[Keys], columns: Sequence[Keys], common: Keys) -> npt.NDArray[np.int64]:
    """Returns for each of n rows the first of k chosen rows with which it shares a key, ``(n,)``; k if there is none.

    ``chosen`` and ``columns`` are the keys of the chosen rows, ``(k,)``, and of all rows, ``(n,)``, by column.
    """
    count = len(chosen[0])
    known, place = np.unique(np.concatenate(chosen), return_inverse=True)
    lowest = np.full(len(known), count)
    np.minimum.at(lowest, place, np.tile(np.arange(count), len(chosen)))
    lowest[np.isin(known, common)] = count
    first = np.full(len(columns[0]), count)
    for column in columns if count else ():
        found = np.minimum(np.searchsorted(known, column), len(known) - 1)
        np.minimum(first, np.where(known[found] == column, lowest[found], count), out=first)
    return first
