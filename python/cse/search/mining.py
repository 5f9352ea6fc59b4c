"""Mines hard negatives for labelled pairs: rows of a corpus that rank high in a search for the anchor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .build import documents, queries_of
from .index import SearchIndex
from .vectors import Float32, exact_products, nearest, unit

Rows = npt.NDArray[np.int64]
# Number of pairs whose candidates are searched for at a time.
BLOCK = 256


def parse_ranks(text: str) -> tuple[int, int]:
    """Returns the ranks given as ``FIRST-LAST``, counted from 1; raises ``InputError`` for any other form."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdigit() and last.strip().isdigit() and 1 <= int(first) <= int(last)):
        raise InputError(f"--ranks: must be FIRST-LAST with ranks from 1, for example 1-100, got {text!r}")
    return int(first), int(last)


@dataclass(frozen=True)
class Mined:
    """The hard negatives of a pair.

    Attributes:
        pair: Number of the pair.
        rows: Row numbers of the negatives in the corpus.
        cosines: Cosines of the negatives with the anchor.
        positive: Cosine of the positive with the anchor.
    """

    pair: int
    rows: Rows
    cosines: npt.NDArray[np.float64]
    positive: float


@dataclass(frozen=True)
class Mining:
    """How hard negatives are chosen.

    Candidates are the rows of the corpus whose ranks for the anchor lie in a given window. Two kinds of rows are left
    out: rows whose text equals the anchor or one of its positives except for case and white space, and rows that may be
    positives too, because their cosine with the anchor exceeds the positive's cosine minus a margin (positive-aware
    mining; Moreira et al. 2024, arXiv:2407.15831).

    Attributes:
        ranks: First and last rank of the window, counted from 1 in the ranking of the whole corpus.
        margin: The margin, a difference of cosines; None: no row is left out because of its cosine.
        count: Maximum number of negatives per pair.
        by: Whether ``encoder`` or ``bm25`` ranks the rows. The margin always refers to the encoder's cosines.
        pick: Which candidates become negatives: those with the ``top`` ranks, or ``random`` ones.
        seed: Random seed for ``random``; the choice for a pair depends on the seed and the number of the pair.
    """

    ranks: tuple[int, int] = (1, 100)
    margin: float | None = 0.05
    count: int = 1
    by: str = "encoder"
    pick: str = "top"
    seed: int = 0

    def __call__(
        self,
        index: SearchIndex,
        anchors: Sequence[str],
        positives: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Mined]:
        """Yields the negatives of each pair, in the order of the pairs; ``rows`` is empty if no candidate is left.

        Args:
            index: An index of the corpus, without passages.
            anchors: n texts.
            positives: n texts, one positive for each anchor.
            batch_size: Texts per forward pass.
            progress: Called with the number of pairs done since its last call.
        """
        known: dict[str, set[str]] = {}
        for anchor, positive in zip(anchors, positives, strict=True):
            known.setdefault(anchor, {_plain(anchor)}).add(_plain(positive))
        for start in range(0, len(anchors), BLOCK):
            some, theirs = anchors[start : start + BLOCK], positives[start : start + BLOCK]
            queries = Float32(unit(queries_of(index.encoder, some, batch_size=batch_size)))
            targets = Float32(unit(documents(index.encoder, theirs, batch_size=batch_size)))
            own = np.arange(len(some))
            best = exact_products(queries, own, targets, own)
            for number, places in enumerate(self._ranked(index, some, queries)):
                rows = index.rows[places]
                cosines = exact_products(queries, np.full(len(rows), number), index.unit_vectors, places)
                excluded = known[some[number]]
                kept = np.array([_plain(text) not in excluded for text in index.texts(rows)], dtype=bool)
                if self.margin is not None:
                    kept &= cosines <= best[number] - self.margin
                chosen = np.flatnonzero(kept)
                if self.pick == "random":
                    draw = np.random.default_rng([self.seed, start + number])
                    chosen = np.sort(draw.permutation(chosen)[: self.count])
                chosen = chosen[: self.count]
                yield Mined(start + number, rows[chosen], cosines[chosen], float(best[number]))
            if progress:
                progress(len(some))

    def _ranked(self, index: SearchIndex, anchors: Sequence[str], queries: Float32) -> Iterator[Rows]:
        """Yields for each anchor the rows in the window of ranks, as positions in ``index.vectors``."""
        first, last = self.ranks
        if self.by == "encoder":
            yield from nearest(index.vectors, queries.values, last)[1][:, first - 1 :]
            return
        words = index.bm25()
        for anchor in anchors:
            yield np.searchsorted(index.rows, words.search(anchor, last)[first - 1 :])


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
