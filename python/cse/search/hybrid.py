"""Rankings by combined scores of vectors and BM25: hybrid ranking, and smoothing of document vectors.

**Hybrid ranking** combines the two rankings of a query after feedback. z(s) are the scores of all rows minus their
mean, divided by their standard deviation.

``pool``, the default, takes each ranking as an opinion on which row is the best one: p_d = softmax(DENSE z(dense)) and
p_b = softmax(LEXICAL z(BM25)), over all rows. The score of a row is the logarithm of the power mean of the two,
ln(((1 - w) p_d^r + w p_b^r)^(1/r)), where w is the weight of BM25 and r is ``EXPONENT``. A ranking with a clear first
row has more influence than one with many equally good rows, query by query. r = 1 is the linear and r -> 0 the
logarithmic opinion pool (Genest and Zidek 1986). w is larger if the model can hardly read the texts
(``cse.models.readability``) or reads less than half of their tokens at once, even in passages, and smaller for code,
whose queries share few words with it. The constants are chosen by ``benches/domain/pool.py``; ``CODE`` on the only
collection of code.

``scores`` adds the standardised scores, (1 - w) z(dense) + w z(BM25): the logarithmic pool (Bruch, Gai and Ingber 2023,
arXiv:2210.11934). ``rrf`` combines ranks instead (Cormack, Clarke and Buettcher 2009).

With feedback (Li et al. 2021, arXiv:2108.11044), the query vector is moved towards the mean of the vectors of the best
rows by the combined score, which is then computed again.

**Smoothing** moves each document vector towards the mean of the vectors of its nearest other documents. For documents
with vectors d of unit length, d' = normalise((1 - SHARE) d + SHARE mean), where the mean is that of the vectors of the
``NEIGHBOURS`` other documents best in z(dense) + z(BM25), with the document's text as query, and z as above, over all
documents. This is the expansion of documents by their neighbours (Singhal and Pereira 1999) with vectors in place of
words. The constants are chosen like the defaults of hybrid ranking.

Only the positions of the neighbours and the norms before normalisation are stored. The score of a smoothed vector is a
weighted sum of scores of stored vectors, so a search reads the stored vectors once, as it does without smoothing. The
neighbours depend on all documents; they are computed again after each change of an index, and do not depend on the
order or the number of its updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .fusion import Fusion
from .vectors import Array, Doubles, Floats, Rows, Takes, Vectors, exact_products, rounding_error, top, unit

NEIGHBOURS, SHARE = 5, 0.3
# Approximate number of scores in memory at a time, in each of about four arrays of float64, but at least those of
# ``LEAST`` documents, because all vectors are read once for each block of documents.
SCORES, LEAST = 1 << 23, 64
# Digits to which the standardised scores are rounded, so that documents with equal texts have equal scores.
DIGITS = 9

# Returns the BM25 scores of all n documents for the texts of the documents at some positions, ``(len(rows), n)``.
Lexical = Callable[[Rows], Doubles]


class Smoothing:
    """Smoothed vectors: those of n documents, their neighbours, and the norms before normalisation.

    Args:
        vectors: n vectors of unit length.
        near: ``(n, k)`` int32 positions of the neighbours of each document; k is ``NEIGHBOURS``, or n - 1 if smaller.
        norms: ``(n,)`` float64.
    """

    def __init__(self, vectors: Vectors, near: npt.NDArray[np.int32], norms: Doubles) -> None:
        self.vectors, self.near, self.norms = vectors, near, norms
        self.largest = 1 / float(norms.min(initial=np.inf)) if len(norms) else 1.0
        """Upper bound on the factor by which the rounding error of a score can grow."""

    @classmethod
    def build(cls, vectors: Vectors, lexical: Lexical, progress: Callable[[int], None] | None = None) -> Smoothing:
        """Finds the neighbours of all documents, in time quadratic in their number.

        Args:
            vectors: n vectors of unit length.
            lexical: The function that returns BM25 scores.
            progress: Called with the number of documents done since its last call.
        """
        n = len(vectors)
        near = np.empty((n, min(NEIGHBOURS, max(n - 1, 0))), dtype=np.int32)
        step = max(LEAST, SCORES // max(n, 1))
        for start in range(0, n, step):
            rows = np.arange(start, min(start + step, n))
            queries, dense = vectors.take(rows), np.empty((len(rows), n))
            for left in range(0, n, 16384):
                dense[:, left : left + 16384] = queries @ vectors.take(np.arange(left, min(left + 16384, n))).T
            scores = standardised(lexical(rows))
            scores += standardised(dense)
            np.round(scores, DIGITS, out=scores)
            scores[np.arange(len(rows)), rows] = -np.inf
            near[rows] = [top(line, near.shape[1]) for line in scores]
            if progress:
                progress(len(rows))
        unscaled = cls(vectors, near, np.ones(n))
        norms = np.empty(n)
        for start in range(0, n, 4096):
            rows = np.arange(start, min(start + 4096, n))
            norms[rows] = np.linalg.norm(unscaled.take(rows), axis=1)
        return cls(vectors, near, np.where(norms > 0, norms, 1))

    def scores(self, scores: Doubles) -> Doubles:
        """Returns the scores of the smoothed vectors, given those of the stored vectors, both ``(n,)``."""
        if not self.near.shape[1]:
            return scores / self.norms
        smoothed: Doubles = self._weights @ scores
        smoothed += (1 - SHARE) / self.norms * scores
        return smoothed

    @cached_property
    def _weights(self) -> Any:
        """Weights of the neighbours: a sparse product takes a quarter of the time of indexing and adding."""
        from scipy.sparse import csr_matrix

        n, k = self.near.shape
        values = np.repeat(SHARE / k / self.norms, k)
        starts = np.arange(0, n * k + 1, k, dtype=np.int32 if n * k < 2**31 else np.int64)
        return csr_matrix((values, self.near.ravel(), starts), shape=(n, n))

    def take(self, rows: Rows) -> Doubles:
        """Returns the smoothed vectors at some positions, ``(len(rows), D)`` float64."""
        result = self.vectors.take(rows)
        if self.near.shape[1]:
            near = self.near[rows]
            mean = self.vectors.take(near.ravel().astype(np.int64)).reshape(*near.shape, -1).mean(axis=1)
            result = (1 - SHARE) * result + SHARE * mean
        return result / self.norms[rows, None]


# The constant of reciprocal rank fusion, as in the paper.
CONSTANT = 60
# Default number of feedback rows for smoothed vectors.
FEEDBACK = 5


# The pool: factors of the standardised scores in the two softmax functions, and the exponent of the mean.
DENSE, LEXICAL, EXPONENT = 1.5, 0.5, 0.3
# Default weights of BM25 in the pool, for texts that the model can read, for code, and for texts that it can hardly
# read or of which it reads less than half; and in a sum.
READABLE, CODE, UNREADABLE, SUM = 0.5, 0.3, 0.8, 0.2


class Ranker:
    """Ranks the rows of an index by combined scores.

    Args:
        vectors: The vectors of the index, of n places; those of ``smoothing``, if it is given.
        rows: ``(n,)`` row of each place, ascending; a row with several passages has several places.
        cosine: Whether vectors have unit length, so that the query is normalised after feedback.
        smoothing: Rank by the smoothed vectors; each row must have one place.
    """

    def __init__(self, vectors: Vectors, rows: Rows, *, cosine: bool, smoothing: Smoothing | None = None) -> None:
        self.vectors, self.cosine, self.smoothing = vectors, cosine, smoothing
        self.exact: Takes = vectors if smoothing is None else smoothing
        """The vectors that are searched."""
        self.rows, self.starts = np.unique(rows, return_index=True)
        """Rows with a vector, ascending, and the first place of each."""

    def rank(self, query: Floats, words: Floats | None, fusion: Fusion | None, k: int) -> list[tuple[int, float, int]]:
        """Returns the k best rows, best first, each with its score and the place of its best vector.

        Ties are in row order. The scores of the vectors are computed in float32 for all rows, and again in float64 for
        the rows that may be among the best.

        Args:
            query: The query vector, ``(D,)`` float32.
            words: The BM25 score of each row of the index, including rows without a vector.
            fusion: The weights; None: rank by the scores of the vectors, without ``words``.
            k: Number of rows.
        """
        dense, places = self._scores(query)
        weight, by_pool, lexical = 0.0, False, np.zeros(1)
        if fusion is not None and words is not None:
            weight, by_pool = fusion.bm25_weight or 0.0, fusion.kind == "pool"
            lexical = standardised((words if len(words) == len(self.rows) else words[self.rows]).astype(np.float64))
            if by_pool:
                lexical *= LEXICAL
                lexical = weight * np.exp(EXPONENT * (lexical - log_sum(lexical)))
            count = (FEEDBACK if self.smoothing else 0) if fusion.feedback is None else fusion.feedback
            if count:
                relative = standardised(dense)
                level = log_sum(DENSE * relative) if by_pool else 0.0
                best = top(combine(relative, lexical, weight, level, by_pool), count)
                centre = self.exact.take(places[best]).mean(axis=0)
                query = ((1 - fusion.share) * query + fusion.share * centre).astype(np.float32)
                query = unit(query[None])[0] if self.cosine else query
                dense, places = self._scores(query)
        mean, spread, level = 0.0, 1.0, 0.0
        if fusion is not None:
            # Rounded, because float32 products depend on how the vectors are divided into files.
            mean, spread = (float(f"{value:.4e}") for value in (dense.mean(), dense.std()))
        if by_pool:
            relative = (dense - mean) / spread if spread > 0 else 0 * dense
            level = float(f"{log_sum(DENSE * relative):.4e}")

        def combined(scores: Doubles, at: Rows | slice) -> Doubles:
            relative = (scores - mean) / spread if spread > 0 else 0 * scores
            return combine(relative, lexical[at] if weight or by_pool else lexical, weight, level, by_pool)

        scores = combined(dense, slice(None))
        k = min(k, len(scores))
        error = rounding_error(self.vectors.width) * self.vectors.longest * float(np.linalg.norm(query))
        error *= self.smoothing.largest if self.smoothing else 1
        margin = 2 * error / spread if spread > 0 else 0.0
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        # The slope of the logarithm of a pooled score is at most EXPONENT * DENSE, and that of a sum 1 - weight.
        least = least * np.exp(-EXPONENT * DENSE * margin) if by_pool else least - (1 - weight) * margin
        near = np.flatnonzero(scores >= least)
        exact = exact_products(Array(query[None]), np.zeros(len(near), dtype=np.int64), self.exact, places[near])
        final = combined(exact, near)
        final = np.log(final) / EXPONENT if by_pool else final
        order = np.lexsort((near, -final))[:k]
        return [(int(self.rows[near[at]]), float(final[at]), int(places[near[at]])) for at in order]

    def _scores(self, query: Floats) -> tuple[Doubles, Rows]:
        """Returns the largest score of the places of each row, and that place."""
        total, step = len(self.vectors), self.vectors.most
        products = np.concatenate(
            [self.vectors.products(query[None], start, min(start + step, total))[0] for start in range(0, total, step)]
        )
        if self.smoothing is not None:
            return self.smoothing.scores(products.astype(np.float64)), self.starts
        if len(self.rows) == total:
            return products.astype(np.float64), self.starts
        best = np.maximum.reduceat(products, self.starts)
        at = np.flatnonzero(products == np.repeat(best, np.diff([*self.starts, total])))
        owner = np.searchsorted(self.starts, at, side="right") - 1
        return best.astype(np.float64), at[np.unique(owner, return_index=True)[1]]


def fuse(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """Combines rankings by reciprocal rank fusion (Cormack, Clarke and Buettcher 2009).

    The score of a row is the sum of 1 / (60 + rank) over the rankings that contain the row; ranks start at 1.

    Args:
        rankings: Rankings, each a sequence of row numbers, best first.
        k: Maximum number of rows to return.

    Returns:
        Rows and scores, best first; rows with equal scores are in row order.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (CONSTANT + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]


def combine(dense: Doubles, lexical: Doubles, weight: float, level: float, by_pool: bool) -> Doubles:
    """Returns the combined scores of rows; with ``by_pool``, the mean of p^r, which takes one exponential a row.

    Args:
        dense: Standardised scores of the vectors.
        lexical: Standardised scores of BM25; with ``by_pool``, the weight of BM25 times p_b^r.
        weight: The weight of BM25.
        level: With ``by_pool``, the logarithm of the sum of the exponentials of ``DENSE * dense`` over all rows.
        by_pool: Whether the scores are pooled, instead of added.
    """
    if not by_pool:
        return (1 - weight) * dense + weight * lexical if weight else dense
    mean: Doubles = np.exp(EXPONENT * (DENSE * dense - level))
    mean *= 1 - weight
    mean += lexical
    return mean


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
