"""Mines texts to train on with ``cse train --pairs``.

``Mining`` finds hard negatives for labelled pairs: rows of a corpus that rank high in a search for the anchor.
``QueryRows`` needs no labels: it makes anchors, positives and negatives from queries and the rows that they find.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..augment.pairings import Spans, SpansOptions
from ..errors import InputError, check_integer, check_texts, unknown
from ..rng import Draws
from .fusion import Fusion
from .index import SearchIndex
from .vectors import Array, exact_products, nearest, unit

if TYPE_CHECKING:
    from ..models.cross_encoder import Reranker

Rows = npt.NDArray[np.int64]
# Number of anchors whose candidates are searched for at a time.
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
        scores: Scores of the negatives for the anchor: cosines, or those of a cross-encoder.
        positive: Score of the positive for the anchor.
    """

    pair: int
    rows: Rows
    scores: npt.NDArray[np.float64]
    positive: float


@dataclass(frozen=True)
class Mining:
    """How hard negatives are chosen.

    Candidates are the rows of the corpus whose ranks for the anchor lie in a given window. Three kinds of rows are left
    out: rows whose text equals the anchor, one of its positives or a candidate of a lower rank except for case and
    white space; rows that may be positives too, because their score exceeds the lowest score of a positive of the
    anchor minus a margin (positive-aware mining; Moreira et al. 2024, arXiv:2407.15831); and rows whose score is
    outside a range. The score of a row is its cosine with the anchor, or that of a cross-encoder.

    The negatives are those of ``mine_hard_negatives`` in sentence-transformers with the same options, ``range_min=0``
    and a ``range_max`` that is the last rank less the number of the anchor's positives.

    Attributes:
        ranks: First and last rank of the window, counted from 1 in the ranking of the whole corpus.
        margin: The margin, a difference of scores; None: no row is left out because of it.
        count: Maximum number of negatives per pair.
        by: Whether ``encoder`` or ``bm25`` ranks the rows. Scores do not depend on it.
        pick: Which candidates become negatives: the ``top`` ones, or ``random`` ones.
        seed: Random seed for ``random``; the choice for a pair depends on the seed and the number of the pair.
        relative_margin: The margin as a fraction of the absolute value of the positive's score; None: as ``margin``.
        min_score: Minimum score of a negative.
        max_score: Maximum score of a negative.
        reranker: A cross-encoder whose scores take the place of cosines, and rank the candidates.
    """

    ranks: tuple[int, int] = (1, 100)
    margin: float | None = 0.05
    count: int = 1
    by: str = "encoder"
    pick: str = "top"
    seed: int = 0
    relative_margin: float | None = None
    min_score: float = -math.inf
    max_score: float = math.inf
    reranker: Reranker | None = None

    def __post_init__(self) -> None:
        for name, known in (("by", ("encoder", "bm25")), ("pick", ("top", "random"))):
            if getattr(self, name) not in known:
                raise unknown(f"--{name}", str(getattr(self, name)), known)
        check_integer(self.count, "--negatives")

    def __call__(
        self,
        index: SearchIndex,
        anchors: Sequence[str],
        positives: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> Iterator[Mined]:
        """Yields the negatives of each pair; ``rows`` is empty if no candidate is left.

        Pairs with the same anchor follow each other; otherwise, the order is that of the pairs.

        Args:
            index: An index of the corpus, without passages.
            anchors: n texts.
            positives: n texts, one positive for each anchor.
            batch_size: Texts per forward pass.
            progress: Called with the number of pairs done since its last call.
        """
        anchors, positives = check_texts(anchors, "anchors"), check_texts(positives, "positives")
        if len(anchors) != len(positives):
            raise InputError(f"positives: {len(positives):,} were given for {len(anchors):,} anchors; each needs one")
        pairs_of: dict[str, list[int]] = {}
        for pair, (anchor, _) in enumerate(zip(anchors, positives, strict=True)):
            pairs_of.setdefault(anchor, []).append(pair)
        distinct = list(pairs_of)
        for start in range(0, len(distinct), BLOCK):
            some = distinct[start : start + BLOCK]
            pairs = [pair for anchor in some for pair in pairs_of[anchor]]
            theirs = [positives[pair] for pair in pairs]
            queries = Array(unit(index.encoder.encode_query(some, batch_size=batch_size)))
            targets = Array(unit(index.encoder.encode_document(theirs, batch_size=batch_size)))
            asked = np.repeat(np.arange(len(some)), [len(pairs_of[anchor]) for anchor in some])
            cosines = exact_products(queries, asked, targets, np.arange(len(pairs)))
            for number, places in enumerate(self._ranked(index, some, queries)):
                anchor, own = some[number], pairs_of[some[number]]
                known = {_plain(text) for text in (anchor, *(positives[pair] for pair in own))}
                new = []
                for at, text in enumerate(map(_plain, index.texts(index.rows[places]))):
                    if text not in known:
                        known.add(text)
                        new.append(at)
                places = places[new]
                rows, best = index.rows[places], cosines[asked == number]
                scores = exact_products(queries, np.full(len(rows), number), index.unit_vectors, places)
                if self.reranker is not None:
                    scores = self.reranker.score(anchor, index.texts(rows), batch_size)
                    best = self.reranker.score(anchor, [positives[pair] for pair in own], batch_size)
                    order = np.argsort(-scores, kind="stable")
                    rows, scores = rows[order], scores[order]
                lowest, limit = best.min(), self.max_score
                if self.margin is not None:
                    limit = min(limit, lowest - self.margin)
                if self.relative_margin is not None:
                    limit = min(limit, lowest - abs(lowest) * self.relative_margin)
                kept = np.flatnonzero((scores >= self.min_score) & (scores <= limit))
                for pair, positive in zip(own, best.tolist(), strict=True):
                    chosen = kept
                    if self.pick == "random":
                        draw = np.random.default_rng([self.seed, pair])
                        chosen = np.sort(draw.permutation(kept)[: self.count])
                    chosen = chosen[: self.count]
                    yield Mined(pair, rows[chosen], scores[chosen], positive)
            if progress:
                progress(len(pairs))

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
        check_integer(self.count, "--rows")
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
            InputError: If a query is blank, the corpus has too few rows for the ranks, or bm25s is not installed.
        """
        queries = check_texts(queries, "queries")
        if not queries or not all(query.strip() for query in queries):
            raise InputError("queries: at least one is needed, and none may be blank; leave out blank ones")
        first, last = self.ranks
        if len(index.rows) < max(first, 2):
            raise InputError(f"--ranks {first}-{last}: the corpus has only {len(index.rows)} rows; name lower ranks")
        half = self.count // 2
        asked = self._asked(half, len(queries))
        wanted = sorted(set(asked))
        ranked: dict[int, Rows] = {}
        for start in range(0, len(wanted), BLOCK):
            some = wanted[start : start + BLOCK]
            hits = index.search([queries[query] for query in some], last, hybrid=Fusion(), batch_size=batch_size)
            ranked |= {query: np.array([hit.row for hit in own]) for query, own in zip(some, hits, strict=True)}
            if progress:
                progress(len(some))
        made = [
            (queries[query], *self._passages(index, ranked[query], np.random.default_rng([self.seed, 1, number])))
            for number, query in enumerate(asked)
        ]
        made += self._spans(index, self.count - half)
        return [made[at] for at in np.random.default_rng([self.seed, 3]).permutation(len(made))]

    def _asked(self, count: int, queries: int) -> list[int]:
        """Returns the queries of rows: in each pass, every query occurs once, in a random order."""
        turns = range(-(-count // queries))
        passes = [np.random.default_rng([self.seed, 0, turn]).permutation(queries).tolist() for turn in turns]
        return [query for order in passes for query in order][:count]

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
