"""Makes rows to train on with ``cse train --pairs`` from a corpus and queries without labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..augment.pairings import Spans, SpansOptions
from ..context import TextContext
from ..errors import InputError
from ..identity import Keys, first_rows, row_keys
from ..rng import Draws
from .fusion import Fusion
from .index import SearchIndex
from .storage import Numbers

# Number of queries that are searched for at a time.
BLOCK = 256


def parse_ranks(text: str) -> tuple[int, int]:
    """Returns the ranks given as ``FIRST-LAST``, counted from 1; raises ``InputError`` for any other form."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdigit() and last.strip().isdigit() and 1 <= int(first) <= int(last)):
        raise InputError(f"--ranks must be FIRST-LAST with ranks from 1, for example 1-100, got {text!r}")
    return int(first), int(last)


@dataclass(frozen=True)
class QueryRows:
    """How rows to train on are made from a corpus and queries without labels.

    Of half of the ``count`` rows, the anchor is a query, the positive a passage of at most ``words`` words of one of
    the first ``positives`` rows in its hybrid ranking, and the negative one of a row at ``ranks`` (first and last, from
    1). The other half preserves what the encoder can do for other texts: anchor and positive are two spans of a row,
    the negative is a span of another row. A text that is in several rows counts once, and a negative is never of the
    same text as the anchor or the positive; texts are compared by their row keys (``cse.identity``).
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
        """Returns the rows, for queries that are not blank: texts of an anchor, a positive and a negative."""
        first, last = self.ranks
        filled = np.unique(index.rows)
        keys = np.zeros(len(index), dtype=np.uint64)  # by row
        keys[filled] = row_keys(index.texts(filled))
        filled = filled[first_rows(keys[filled])]  # a text occurs once
        if len(filled) < max(first, 2):
            raise InputError(
                f"--ranks {first}-{last}: the corpus has only {len(filled)} different rows; name lower ranks"
            )
        half = self.count // 2
        asked = self._asked(half, len(queries))
        wanted = sorted(set(asked))
        ranked: dict[int, Numbers] = {}
        for start in range(0, len(wanted), BLOCK):
            some = wanted[start : start + BLOCK]
            found = self._ranked(index, [queries[query] for query in some], keys, batch_size)
            ranked |= dict(zip(some, found, strict=True))
            if progress:
                progress(len(some))
        own = dict(zip(wanted, row_keys([queries[query] for query in wanted]), strict=True))
        made = []
        for number, query in enumerate(asked):
            rows, draw = ranked[query], np.random.default_rng([self.seed, 1, number])
            far = rows[first - 1 :][keys[rows[first - 1 :]] != own[query]]
            far = far if len(far) else rows[self.positives :][keys[rows[self.positives :]] != own[query]]
            made.append((queries[query], *self._passages(index, rows[: self.positives], far, draw)))
        made += self._spans(index, filled, self.count - half)
        return [made[at] for at in np.random.default_rng([self.seed, 3]).permutation(len(made))]

    def _asked(self, count: int, queries: int) -> list[int]:
        """Returns the queries of rows: in each pass, every query occurs once, in a random order."""
        turns = range(-(-count // queries))
        passes = [np.random.default_rng([self.seed, 0, turn]).permutation(queries).tolist() for turn in turns]
        return [query for order in passes for query in order][:count]

    def _ranked(self, index: SearchIndex, queries: Sequence[str], keys: Keys, batch_size: int) -> list[Numbers]:
        """Returns for each query the first rows of its ranking, of those with the same row key only the first.

        They are as many as the last of ``ranks`` or, if the corpus has fewer different rows, all.
        """
        last, count = self.ranks[1], self.ranks[1]
        while True:
            hits = index.search(queries, count, hybrid=Fusion(), batch_size=batch_size)
            found = [np.array([hit.row for hit in own]) for own in hits]
            ranked = [rows[first_rows(keys[rows])][:last] for rows in found]
            if count >= len(keys) or all(len(rows) == last for rows in ranked):
                return ranked
            count = min(2 * count, len(keys))

    def _passages(self, index: SearchIndex, near: Numbers, far: Numbers, draw: np.random.Generator) -> tuple[str, str]:
        """Returns a passage of one of the rows ``near``, and one of one of the rows ``far``."""
        rows = [draw.choice(near), draw.choice(far)]
        passages = []
        for text in index.texts(np.array(rows)):
            words = text.split()
            start = int(draw.integers(max(len(words) - self.words, 0) + 1))
            passages.append(" ".join(words[start : start + self.words]))
        return passages[0], passages[1]

    def _spans(self, index: SearchIndex, filled: Numbers, count: int) -> list[tuple[str, str, str]]:
        """Returns rows of two spans of a text and one of another; ``filled`` are rows with different texts."""
        draw = np.random.default_rng([self.seed, 2])
        own = draw.integers(len(filled), size=count)
        other = (own + draw.integers(1, len(filled), size=count)) % len(filled)
        spans = Spans(SpansOptions(min_share=0.3, max_share=0.7, max_span_words=24), TextContext())
        numbers = np.arange(count)
        pair = spans(index.texts(filled[own]), numbers, Draws(self.seed, 0))
        negative = spans(index.texts(filled[other]), numbers, Draws(self.seed, 1))
        return list(zip(pair.anchors, pair.positives or (), negative.anchors, strict=True))
