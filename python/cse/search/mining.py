"""Mines texts to train on with ``cse train --pairs``.

``Mining`` finds hard negatives for labelled pairs: rows of a corpus that rank high in a search for the anchor.
``QueryRows`` needs no labels: it makes anchors, positives and negatives from queries and the rows that they find.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..augment.pairings import Spans, SpansOptions
from ..errors import InputError
from ..rng import Draws
from .fusion import Fusion
from .index import SearchIndex
from .vectors import Array, exact_products, nearest, unit

Rows = npt.NDArray[np.int64]
# Number of pairs whose candidates are searched for at a time.
BLOCK = 256


def parse_ranks(text: str) -> tuple[int, int]:
    """Returns the ranks given as ``FIRST-LAST``, counted from 1; raises ``InputError`` for any other form."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdigit() and last.strip().isdigit() and 1 <= int(first) <= int(last)):
        raise InputError(f"--ranks must be FIRST-LAST with ranks from 1, for example 1-100, got {text!r}")
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
            queries = Array(unit(index.encoder.encode_query(some, batch_size=batch_size)))
            targets = Array(unit(index.encoder.encode_document(theirs, batch_size=batch_size)))
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

    def _ranked(self, index: SearchIndex, anchors: Sequence[str], queries: Array) -> Iterator[Rows]:
        """Yields for each anchor the rows in the window of ranks, as positions in ``index.vectors``."""
        first, last = self.ranks
        if self.by == "encoder":
            yield from nearest(index.vectors, queries.values, last)[1][:, first - 1 :]
            return
        words = index.bm25()
        for anchor in anchors:
            yield np.searchsorted(index.rows, words.search(anchor, last)[first - 1 :])


@dataclass(frozen=True)
class QueryRows:
    """How rows to train on are made from a corpus and queries without labels.

    Half of the rows are made from queries (pseudo-labels): the anchor is a query, the positive is a passage of one of
    the first rows in its ranking by ``SearchIndex.search(hybrid=Fusion())``, and the negative is a passage of a row
    further below. The other half preserves what the encoder can do for other texts: anchor and positive are two spans
    of a row, as in the default recipe for sentence encoders, and the negative is a span of another row. All queries
    occur equally often, up to a difference of 1.

    Attributes:
        count: Number of rows to make.
        ranks: First and last rank of the rows of negatives, counted from 1.
        positives: Number of first ranks from which positives are taken.
        words: Maximum number of words of a passage, which begins at a random word.
        seed: Random seed; a row depends on it, on its number, and on the queries and the corpus.

    Raises:
        InputError: If the ranks of the negatives and of the positives overlap.
    """

    count: int = 1920
    ranks: tuple[int, int] = (21, 60)
    positives: int = 3
    words: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        if self.ranks[0] <= self.positives:
            raise InputError(
                f"--ranks must begin after rank {self.positives}, the last of the positives, got {self.ranks[0]}"
            )

    def __call__(
        self,
        index: SearchIndex,
        queries: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> list[tuple[str, str, str]]:
        """Returns the rows: texts of an anchor, a positive and a negative.

        Args:
            index: An index of the corpus, without passages.
            queries: The queries, at least one.
            batch_size: Texts per forward pass.
            progress: Called with the number of queries searched for since its last call.

        Raises:
            InputError: If the corpus has too few rows for the ranks, or if bm25s is not installed.
        """
        first, last = self.ranks
        if len(index.rows) < max(first, 2):
            raise InputError(f"--ranks {first}-{last}: the corpus has only {len(index.rows)} rows; name lower ranks")
        half = self.count // 2
        asked = self._asked(half, len(queries))
        wanted = sorted(set(asked))
        found: dict[int, Rows] = {}
        for start in range(0, len(wanted), BLOCK):
            some = wanted[start : start + BLOCK]
            hits = index.search([queries[each] for each in some], last, hybrid=Fusion(), batch_size=batch_size)
            found |= {each: np.array([hit.row for hit in own]) for each, own in zip(some, hits, strict=True)}
            if progress:
                progress(len(some))
        made = [
            (queries[each], *self._passages(index, found[each], np.random.default_rng([self.seed, 1, number])))
            for number, each in enumerate(asked)
        ]
        made += self._spans(index, self.count - half)
        return [made[at] for at in np.random.default_rng([self.seed, 3]).permutation(len(made))]

    def _asked(self, count: int, queries: int) -> list[int]:
        """Returns the queries of rows: in each pass, every query occurs once, in a random order."""
        turns = range(-(-count // queries))
        passes = [np.random.default_rng([self.seed, 0, turn]).permutation(queries).tolist() for turn in turns]
        return [query for each in passes for query in each][:count]

    def _passages(self, index: SearchIndex, ranked: Rows, draw: np.random.Generator) -> tuple[str, str]:
        """Returns a passage of one of the first rows of a ranking, and one of a row at ``ranks``."""
        rows = [draw.choice(ranked[: self.positives]), draw.choice(ranked[self.ranks[0] - 1 :])]
        passages = []
        for text in index.texts(np.array(rows)):
            words = text.split()
            start = int(draw.integers(max(len(words) - self.words, 0) + 1))
            passages.append(" ".join(words[start : start + self.words]))
        return passages[0], passages[1]

    def _spans(self, index: SearchIndex, count: int) -> list[tuple[str, str, str]]:
        """Returns rows of two spans of a text and one of another."""
        draw = np.random.default_rng([self.seed, 2])
        own = draw.integers(len(index.rows), size=count)
        other = (own + draw.integers(1, len(index.rows), size=count)) % len(index.rows)
        spans = Spans(SpansOptions(shortest=0.3, longest=0.7, most_words=24), None)
        numbers = np.arange(count)
        pair = spans(index.texts(index.rows[own]), numbers, Draws(self.seed, 0))
        negative = spans(index.texts(index.rows[other]), numbers, Draws(self.seed, 1))
        return list(zip(pair.anchors, pair.positives or (), negative.anchors, strict=True))


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
