"""Hybrid ranking: a pool of the rankings by vectors and by BM25.

z(s) are the scores of all rows minus their mean, divided by their standard deviation. Each ranking is taken as an
opinion on which row is the best one: p_d = softmax(DENSE z(dense)) and p_b = softmax(LEXICAL z(BM25)), over all rows.
The score of a row is the logarithm of the power mean of the two, ln(((1 - w) p_d^r + w p_b^r)^(1/r)), where w is the
weight of BM25 and r is ``EXPONENT``: r = 1 is the linear and r -> 0 the logarithmic opinion pool (Genest and Zidek
1986). A ranking with a clear first row has more influence than one with many equally good rows, query by query. The
constants are chosen by ``benches/domain/pool.py``.
"""

from __future__ import annotations

import numpy as np

from .vectors import BLOCK, Doubles, Floats, Numbers, Vectors, exact_products, rounding_error

# Factors of the standardised scores in the two softmax functions, and the exponent of the mean.
DENSE, LEXICAL, EXPONENT = 1.5, 0.5, 0.3
# Default weights of BM25 for texts that the model can read, for code, and for texts that it can hardly read or of
# which it reads less than half.
READABLE, CODE, UNREADABLE = 0.5, 0.3, 0.8


class Ranker:
    """Ranks the rows of an index by pooled scores; ``rows``, ``(n,)``, is the row of each vector, its places."""

    def __init__(self, vectors: Vectors, rows: Numbers) -> None:
        self.vectors = vectors
        self.rows, self.starts = np.unique(rows, return_index=True)
        """Rows with a vector, ascending, and the first place of each."""

    def rank(self, query: Floats, words: Floats, weight: float, k: int) -> list[tuple[int, float, int]]:
        """Returns the k best rows, best first, each with its score and the place of its best vector.

        ``query`` is ``(D,)``, and ``words`` has the BM25 score of each row, including rows without a vector. Scores
        are computed in float32, and again in float64 for the rows that may be among the best.
        """
        lexical = standardised((words if len(words) == len(self.rows) else words[self.rows]).astype(np.float64))
        lexical *= LEXICAL
        lexical = weight * np.exp(EXPONENT * (lexical - log_sum(lexical)))
        dense, places = self._scores(query)
        # Rounded, because float32 products depend on how the vectors are divided into batches.
        mean, spread = (float(f"{value:.4e}") for value in (dense.mean(), dense.std()))
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
        error = rounding_error(self.vectors.width) * self.vectors.longest * float(np.linalg.norm(query))
        margin = 2 * error / spread if spread > 0 else 0.0
        # The slope of the logarithm of a score is at most EXPONENT * DENSE.
        least = np.partition(scores, len(scores) - k)[len(scores) - k] * np.exp(-EXPONENT * DENSE * margin)
        near = np.flatnonzero(scores >= least)
        exact = exact_products(query[None], np.zeros(len(near), dtype=np.int64), self.vectors, places[near])
        final = np.log(pooled(exact, near)) / EXPONENT
        order = np.lexsort((near, -final))[:k]
        return [(int(self.rows[near[at]]), float(final[at]), int(places[near[at]])) for at in order]

    def _scores(self, query: Floats) -> tuple[Doubles, Numbers]:
        """Returns the largest score of the places of each row, and that place."""
        products = np.concatenate([block @ query for _, block in self.vectors.blocks(BLOCK)])
        total = len(products)
        if len(self.rows) == total:
            return products.astype(np.float64), self.starts
        best = np.maximum.reduceat(products, self.starts)
        at = np.flatnonzero(products == np.repeat(best, np.diff([*self.starts, total])))
        owner = np.searchsorted(self.starts, at, side="right") - 1
        return best.astype(np.float64), at[np.unique(owner, return_index=True)[1]]


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
