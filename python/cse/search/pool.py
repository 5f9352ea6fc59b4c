"""The pool of a ranking by vectors and a ranking by words."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..ties import TIE, WIDEST

Doubles = npt.NDArray[np.float64]

# Factors of the standardised scores in the two softmax functions, and the exponent of the mean; see ``Pool``.
DENSE, LEXICAL, EXPONENT = 1.5, 0.5, 0.3
# Default weights of BM25 for texts that the model can read, for code, and for texts that it can hardly read or of
# which it reads less than the share ``LEAST_READ``.
READABLE, CODE, UNREADABLE = 0.5, 0.3, 0.8
LEAST_READ = 0.5


class Pool:
    """The pool of two rankings of n rows for one query; their scores are ``(n,)``.

    z(s) are the scores of all rows minus their mean, divided by their standard deviation. Each ranking is taken as an
    opinion on which row is the best one: p_d = softmax(DENSE z(dense)) and p_b = softmax(LEXICAL z(BM25)), over all
    rows. The score of a row is the logarithm of the power mean of the two, ln(((1 - w) p_d^r + w p_b^r)^(1/r)), where w
    is the weight of BM25 and r is ``EXPONENT``: r = 1 is the linear and r -> 0 the logarithmic opinion pool (Genest and
    Zidek 1986). A ranking with a clear first row has more influence than one with many equally good rows, query by
    query. The constants are chosen by ``benches/domain/pool.py``.
    """

    def __init__(self, dense: Doubles, words: Doubles, weight: float, size: float = 1.0) -> None:
        """``dense``, ``(n,)``, may have rounding errors of float32, and has the largest size ``size`` (see
        ``cse.ties``); ``words``, ``(n,)``, are the scores of BM25."""
        lexical = words - words.mean()
        spread = np.sqrt(np.einsum("i,i", lexical, lexical) / len(lexical))  # faster than np.std
        lexical *= LEXICAL / spread if spread > 0 else 0.0
        self._lexical = weight * np.exp(EXPONENT * (lexical - log_sum(lexical)))
        self._weight = weight
        # Rounded, because float32 products depend on how the vectors are divided into batches.
        self._mean, spread = (float(f"{value:.4e}") for value in (dense.mean(), dense.std()))
        self._scale = DENSE / spread if spread > TIE * size else 0.0  # or all are the same
        self.sizes = 1 + self._scale * size
        """Size of the final scores; the 1 is for BM25, which is computed in float32 too."""
        self._level = float(f"{log_sum(self._scale * (dense - self._mean)):.4e}")

    def __call__(self, dense: Doubles, at: Any = slice(None)) -> Doubles:
        """Returns the power means of the rows at some positions, by default of all, to the power of ``EXPONENT``."""
        result = dense - self._mean
        result *= EXPONENT * self._scale
        result -= EXPONENT * self._level
        np.exp(result, out=result)
        result *= 1 - self._weight
        result += self._lexical[at]
        return result

    def lowered(self, value: float, error: float) -> float:
        """Returns a lower bound on a value of a call that is the same as ``value``, after a change of its ``dense`` by
        at most ``error``."""
        return value * float(np.exp(-EXPONENT * (self._scale * error + WIDEST * TIE * self.sizes)))

    def scores(self, dense: Doubles, at: Any) -> Doubles:
        """Returns the final scores of the rows at some positions."""
        return np.log(self(dense, at)) / EXPONENT


def log_sum(values: Doubles) -> float:
    """Returns the logarithm of the sum of the exponentials."""
    largest = values.max()
    return float(largest + np.log(np.exp(values - largest).sum()))
