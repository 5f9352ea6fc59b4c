"""Finds the rows of one state of an index for query vectors and query texts.

The hybrid ranking is a pool of the rankings by vectors and by BM25. z(s) are the scores of all rows minus their mean,
divided by their standard deviation. Each ranking is taken as an opinion on which row is the best one:
p_d = softmax(DENSE z(dense)) and p_b = softmax(LEXICAL z(BM25)), over all rows. The score of a row is the logarithm of
the power mean of the two, ln(((1 - w) p_d^r + w p_b^r)^(1/r)), where w is the weight of BM25 and r is ``EXPONENT``:
r = 1 is the linear and r -> 0 the logarithmic opinion pool (Genest and Zidek 1986). A ranking with a clear first row
has more influence than one with many equally good rows, query by query. The constants are chosen by
``benches/domain/pool.py``.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..encoder.base import compared_by
from ..encoder.vocabulary import Readability, readability, share_read
from ..tfidf.pieces import Pieces
from ..ties import TIE, WIDEST, comparable
from .bm25 import SAMPLE, Bm25, Terms, terms_for
from .fusion import Fusion
from .rows import Rows
from .vectors import BLOCK, Doubles, Floats, Numbers, exact_products, nearest, rounding_error, unit

if TYPE_CHECKING:
    from ..encoder.encoder import Encoder

Progress = Callable[[int], None]
# Row, its score, and the position of its best vector in the index.
Found = tuple[int, float, int]
# Number of texts whose tokens are counted to see whether the model reads them, and the share that it should read.
LONG_SAMPLE, LEAST_READ = 50, 0.5
# Factors of the standardised scores in the two softmax functions, and the exponent of the mean.
DENSE, LEXICAL, EXPONENT = 1.5, 0.5, 0.3
# Default weights of BM25 for texts that the model can read, for code, and for texts that it can hardly read or of
# which it reads less than half.
READABLE, CODE, UNREADABLE = 0.5, 0.3, 0.8
# Number of further rows that are found, at least, if their scores may be the same as the last one.
SAME = 1000


@dataclass(frozen=True)
class Hit:
    """A row that was found.

    ``row`` counts from 0, ``id`` is the row number if the index has no ids, and ``text`` is that of the best passage if
    rows are cut into passages. ``score`` is the cosine (or dot product, if the model uses it) with the query; with
    ``hybrid``, the logarithm of a pooled probability.
    """

    row: int
    id: str
    score: float
    text: str


class Searcher:
    """One state of an index, which does not change: its rows, and what is derived from them when it is first needed.

    Several threads may search. The BM25 indexes are stored in the folder, unless it cannot be changed.
    """

    def __init__(self, rows: Rows, encoder: Encoder, verify: bool = True) -> None:
        self.rows, self.encoder, self._verify = rows, encoder, verify
        self._terms: dict[Fusion, Terms] = {}
        self._bm25: dict[str, Bm25] = {}
        self._lock = threading.RLock()

    @cached_property
    def sample(self) -> list[str]:
        """The texts of at most ``SAMPLE`` rows, evenly spread."""
        count = len(self.rows)
        return self.rows.texts(range(0, count, max(1, count // SAMPLE))[:SAMPLE])

    @cached_property
    def readability(self) -> Readability:
        """How the tokenizer of the model cuts the words of the texts."""
        return readability(self.encoder.tokenizer, self.sample)

    @cached_property
    def read(self) -> tuple[float, int]:
        """Mean share of a text that the model reads at once, and the most tokens of a text; see ``share_read``."""
        return share_read(self.encoder, self.sample[:: max(1, len(self.sample) // LONG_SAMPLE)])

    @property
    def warnings(self) -> list[str]:
        """What the model does not read of the texts, and a similarity that is not used, in sentences."""
        name, (_, similarity) = str(self.encoder.given[0]), compared_by(self.encoder)
        warnings = [self.readability.warning(name), similarity and f"{name}: {similarity}"]
        share, tokens = self.read
        if share < LEAST_READ and self.rows.settings["passages"] is None:
            warnings.append(
                f"the model reads only the first {tokens} tokens of a row, on average {share:.0%} of it; to search "
                f"all of it, build the index with --passages {max(8, (tokens + 2) // 4)}, or max for fewer vectors"
            )
        return list(filter(None, warnings))

    def terms(self, fusion: Fusion) -> Terms:
        """Returns how BM25 splits the texts: what ``fusion`` says, with what is ``auto`` found from the texts."""
        if fusion not in self._terms:
            terms = terms_for(self.sample, fusion.language, fusion.stop_words, fusion.bm25_tokenizer)
            if terms.tokenizer == "wordpieces":
                pieces = Pieces.of(self.encoder.tokenizer, self.encoder.given[0])
                terms = replace(terms, language="none", pieces=pieces)
            self._terms[fusion] = terms
        return self._terms[fusion]

    def weight(self, fusion: Fusion) -> float:
        if fusion.bm25_weight is not None:
            return fusion.bm25_weight
        if not self.readability.good or self.read[0] < LEAST_READ:
            return UNREADABLE
        return CODE if self.terms(fusion).tokenizer == "code" else READABLE

    def bm25(self, fusion: Fusion, progress: Progress | None = None) -> Bm25:
        """Returns the BM25 index of the texts; it is built if it is missing, or if the rows have changed since."""
        terms = self.terms(fusion)
        folder = self.rows.path.parent / f"bm25-{self.rows.generation}-{terms.name}"
        with self._lock:
            if folder.name not in self._bm25:
                if folder.exists():
                    index = Bm25.open(folder, terms, self._verify)
                else:
                    chunks = self.rows.table.column("text").chunks
                    index = Bm25.build((text for chunk in chunks for text in chunk.to_pylist()), progress, terms)
                    try:
                        if self.rows.path.exists():  # the folder was not removed
                            index.save(folder)
                    except OSError as error:  # the folder cannot be changed
                        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                            raise
                self._bm25[folder.name] = index
            return self._bm25[folder.name]

    @cached_property
    def _with_vectors(self) -> tuple[Numbers, Numbers]:
        """Rows with a vector, ascending, and the place of the first vector of each."""
        return np.unique(self.rows.row_of, return_index=True)

    def search(
        self, texts: Sequence[str], vectors: npt.NDArray[np.floating], k: int, fusion: Fusion | None = None
    ) -> list[list[Hit]]:
        """Finds the k best rows for each query, given its text and its vector; see ``SearchIndex.search``."""
        cosine = self.rows.settings["similarity"] == "cosine"
        queries = unit(vectors) if cosine else np.asarray(vectors, dtype=np.float32)
        if fusion is None:
            found = self._nearest(queries, k)
        else:
            words, weight = self.bm25(fusion), self.weight(fusion)
            found = [
                self._pooled(query, words.scores(text), weight, k) if text.strip() else []
                for text, query in zip(texts, queries, strict=True)
            ]
        return [self._hits(best) if text.strip() else [] for text, best in zip(texts, found, strict=True)]

    def _nearest(self, queries: Floats, k: int) -> list[list[Found]]:
        """Returns the k rows with the best vectors for each query; those of the same score are in row order."""
        results: list[list[Found]] = [[] for _ in queries]
        left, depth = np.arange(len(queries)), k + 1
        while len(left):
            scores, places = nearest(self.rows.vectors, queries[left], depth)
            scores = comparable(scores, self._sizes(queries[left], places))
            order = np.lexsort((places, -scores), axis=-1)
            scores, places = np.take_along_axis(scores, order, -1), np.take_along_axis(places, order, -1)
            short = []
            for query, line, numbers in zip(left.tolist(), scores.tolist(), places.tolist(), strict=True):
                best: dict[int, Found] = {}
                for place, score in zip(numbers, line, strict=True):
                    row = int(self.rows.row_of[place])
                    best.setdefault(row, (row, score, place))
                results[query] = list(best.values())[:k]
                # More are needed if several passages of one row were found, or if further rows may have the k-th score.
                same = results[query][-1][1] == line[-1] and depth <= k + SAME
                if (len(best) < k or same) and depth < len(self.rows.vectors):
                    short.append(query)
            left, depth = np.array(short, dtype=np.int64), 2 * depth
        return results

    def _sizes(self, queries: Floats, places: Numbers) -> Doubles:
        """Returns the product of the norms of queries ``(Q, D)`` and of vectors at places ``(Q, n)``."""
        norms = np.linalg.norm(self.rows.vectors.rows(places.ravel()), axis=1).reshape(places.shape)
        sizes: Doubles = np.linalg.norm(queries, axis=1, keepdims=True).astype(np.float64) * norms
        return sizes

    def _pooled(self, query: Floats, words: Floats, weight: float, k: int) -> list[Found]:
        """Returns the k rows with the best pooled scores.

        ``query`` is ``(D,)``, and ``words`` has the BM25 score of each row, including rows without a vector. Scores
        are computed in float32, and again in float64 for the rows that may be among the best.
        """
        rows, _ = self._with_vectors
        lexical = standardised((words if len(words) == len(rows) else words[rows]).astype(np.float64))
        lexical *= LEXICAL
        lexical = weight * np.exp(EXPONENT * (lexical - log_sum(lexical)))
        dense, places = self._scores(query)
        # Rounded, because float32 products depend on how the vectors are divided into batches.
        mean, spread = (float(f"{value:.4e}") for value in (dense.mean(), dense.std()))
        size = self.rows.vectors.longest * float(np.linalg.norm(query))
        spread = spread if spread > TIE * size else 0.0  # all scores are the same
        relative = (dense - mean) / spread if spread > 0 else 0 * dense
        level = float(f"{log_sum(DENSE * relative):.4e}")

        def pooled(scores: Doubles, at: Numbers | slice) -> Doubles:
            relative = (scores - mean) / spread if spread > 0 else 0 * scores
            result: Doubles = np.exp(EXPONENT * (DENSE * relative - level))
            result *= 1 - weight
            result += lexical[at]
            return result

        scores = pooled(dense, slice(None))
        k = min(k, len(scores))
        # Of the rows that may be among the best, or have the same score as the last of them, the scores are computed
        # again. The slope of the logarithm of a score is at most EXPONENT * DENSE.
        relative_size = DENSE * size / spread if spread > 0 else 0.0
        margin = 2 * rounding_error(self.rows.vectors.width) * relative_size + WIDEST * TIE * (1 + relative_size)
        least = np.partition(scores, len(scores) - k)[len(scores) - k] * np.exp(-EXPONENT * margin)
        near = np.flatnonzero(scores >= least)
        exact = exact_products(query[None], np.zeros(len(near), dtype=np.int64), self.rows.vectors, places[near])
        # The 1 is for BM25, which is computed in float32 too.
        final = comparable(np.log(pooled(exact, near)) / EXPONENT, 1 + relative_size)
        order = np.lexsort((near, -final))[:k]
        return [(int(rows[near[at]]), float(final[at]), int(places[near[at]])) for at in order]

    def _scores(self, query: Floats) -> tuple[Doubles, Numbers]:
        """Returns the largest product of the vectors of each row, and the place of that vector."""
        products = np.concatenate([block @ query for _, block in self.rows.vectors.blocks(BLOCK)])
        (rows, starts), total = self._with_vectors, len(products)
        if len(rows) == total:
            return products.astype(np.float64), starts
        best = np.maximum.reduceat(products, starts)
        at = np.flatnonzero(products == np.repeat(best, np.diff([*starts, total])))
        owner = np.searchsorted(starts, at, side="right") - 1
        return best.astype(np.float64), at[np.unique(owner, return_index=True)[1]]

    def _hits(self, best: Sequence[Found]) -> list[Hit]:
        rows = [row for row, _, _ in best]
        hits = []
        for (row, score, place), name, text in zip(best, self.rows.ids(rows), self.rows.texts(rows), strict=True):
            start, end = self.rows.spans[place].tolist()
            hits.append(Hit(row, name, score, text[start:end]))
        return hits


def log_sum(values: Doubles) -> float:
    """Returns the logarithm of the sum of the exponentials."""
    largest = values.max(initial=-np.inf)
    return float(largest + np.log(np.exp(values - largest).sum())) if len(values) else 0.0


def standardised(scores: Doubles) -> Doubles:
    """Returns scores, ``(n,)`` or rows of n, minus their mean, divided by their standard deviation unless it is 0."""
    scores = scores - scores.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.einsum("...j,...j", scores, scores) / max(scores.shape[-1], 1))[..., None]  # faster than np.std
    scores /= np.where(spread > 0, spread, 1)
    return scores
