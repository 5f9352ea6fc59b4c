"""Selects the rows of a corpus that are held out from training, for scores without labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import rng
from .corpus import Corpus

__all__ = ["HELD_OUT_WORDS", "Split", "hold_out"]

HELD_OUT_ROWS = 2000
HELD_OUT_SHARE = 0.05
HELD_OUT_WORDS = 8

Rows = npt.NDArray[np.int64]


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

    Args:
        corpus: The corpus.
        seed: Seed of the run.
        wanted: If False, no row is held out.
        rows: The rows to split, ascending; None: all rows that are not blank.

    Raises:
        InputError: If all rows are blank.
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
    """Selects up to ``count`` splittable rows that have enough words and do not repeat an earlier splittable row.

    Each row has a random key, and the rows with the smallest keys are selected. Only as many rows as needed are
    examined, because sorting the hashes of ten million rows takes a minute.

    Returns:
        The selected rows, and all splittable rows with the same text as one of them, both ascending.
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
        found = candidates[np.isin(candidates, first)][:count]
        if len(found) == count or share == 1:
            return np.sort(found), same[np.isin(hashes[same], hashes[found])]
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
