"""Smoothed document vectors: each is moved towards the mean of the vectors of its nearest other documents.

For documents with vectors d of unit length, d' = normalise((1 - SHARE) d + SHARE mean), where the mean is that of the
vectors of the ``NEIGHBOURS`` other documents best in z(dense) + z(BM25), with the document's text as query. z(s) are
the scores of all documents minus their mean, divided by their standard deviation. This is the expansion of documents
by their neighbours (Singhal and Pereira 1999) with vectors in place of words. The constants are those of
``benches/domain/rankings.py`` for collections left out of the choice.

Only the positions of the neighbours and the norms before normalisation are stored. The score of a smoothed vector is a
weighted sum of scores of stored vectors, so a search reads the stored vectors once, as it does without smoothing. The
neighbours depend on all documents; they are computed again after each change of an index, and do not depend on the
order or the number of its updates.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .store import open_arrays, save_arrays
from .vectors import Doubles, Floats, Rows, Vectors

NEIGHBOURS, SHARE = 5, 0.3
# Approximate number of scores in memory at a time, in each of about four arrays of float64, but at least those of
# ``LEAST`` documents, because all vectors are read once for each block of documents.
SCORES, LEAST = 1 << 23, 64
# Digits to which the standardised scores are rounded, so that documents with equal texts have equal scores.
DIGITS = 9

# Returns the BM25 scores of all n documents for the texts of the documents at some positions, ``(len(rows), n)``.
Lexical = Callable[[Rows], Doubles]


class Smoothing:
    """The neighbours of n documents, and the norms of their smoothed vectors before normalisation.

    Args:
        near: ``(n, k)`` int32 positions of the neighbours of each document; k is ``NEIGHBOURS``, or n - 1 if smaller.
        norms: ``(n,)`` float64.
    """

    def __init__(self, near: npt.NDArray[np.int32], norms: Doubles) -> None:
        self.near, self.norms = near, norms
        self._weights: Any = None
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
            scores = lexical(rows)
            _standardise(scores)
            dense = _products(vectors, rows)
            _standardise(dense)
            scores += dense
            np.round(scores, DIGITS, out=scores)
            scores[np.arange(len(rows)), rows] = -np.inf
            near[rows] = _best(scores, near.shape[1])
            if progress:
                progress(len(rows))
        found = cls(near, np.ones(n))
        norms = np.empty(n)
        for start in range(0, n, 4096):
            rows = np.arange(start, min(start + 4096, n))
            norms[rows] = np.linalg.norm(found.take(vectors, rows), axis=1)
        return cls(near, np.where(norms > 0, norms, 1))

    @classmethod
    def open(cls, folder: Path, verify: bool = True) -> Smoothing:
        """Opens what ``save`` wrote; raises ``InputError`` like ``open_arrays``."""
        return cls(*open_arrays(folder, "near", "norms", verify=verify))

    def save(self, folder: Path) -> None:
        """Writes the neighbours and the norms to a folder, atomically."""
        save_arrays(folder, near=self.near, norms=self.norms)

    def scores(self, scores: Doubles) -> Doubles:
        """Returns the scores of the smoothed vectors, given those of the stored vectors, both ``(n,)``."""
        from scipy.sparse import csr_matrix

        n, k = self.near.shape
        if not k:
            return scores / self.norms
        if self._weights is None:  # a sparse product takes a quarter of the time of indexing and adding
            values = np.repeat(SHARE / k / self.norms, k)
            starts = np.arange(0, n * k + 1, k, dtype=np.int32 if n * k < 2**31 else np.int64)
            self._weights = csr_matrix((values, self.near.ravel(), starts), shape=(n, n))
            self._own = (1 - SHARE) / self.norms
        found: Doubles = self._weights @ scores
        found += self._own * scores
        return found

    def take(self, vectors: Vectors, rows: Rows) -> Doubles:
        """Returns the smoothed vectors at some positions, ``(len(rows), D)`` float64."""
        found = vectors.take(rows)
        if self.near.shape[1]:
            near = self.near[rows]
            mean = vectors.take(near.ravel().astype(np.int64)).reshape(*near.shape, -1).mean(axis=1)
            found = (1 - SHARE) * found + SHARE * mean
        return found / self.norms[rows, None]


class Smoothed:
    """A view of vectors that returns the smoothed ones; ``products`` reads each vector several times.

    Args:
        vectors: n vectors of unit length.
        smoothing: Their neighbours.
    """

    longest = 1.0001  # more than 1, because norms are rounded
    most = 4096

    def __init__(self, vectors: Vectors, smoothing: Smoothing) -> None:
        self._vectors, self._smoothing = vectors, smoothing

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def width(self) -> int:
        """The number of dimensions, D."""
        return self._vectors.width

    def block(self, start: int, stop: int) -> Floats:
        """See ``Vectors``."""
        return self.take(np.arange(start, stop)).astype(np.float32)

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        """See ``Vectors``."""
        return np.asarray(queries @ self.block(start, stop).T)

    def take(self, rows: Rows) -> Doubles:
        """See ``Vectors``."""
        return self._smoothing.take(self._vectors, rows)


def _products(vectors: Vectors, rows: Rows) -> Doubles:
    """Returns the dot products of some vectors with all, ``(len(rows), n)``."""
    asked, n = vectors.take(rows), len(vectors)
    found = np.empty((len(rows), n))
    for start in range(0, n, 16384):
        found[:, start : start + 16384] = asked @ vectors.take(np.arange(start, min(start + 16384, n))).T
    return found


def _standardise(scores: Doubles) -> None:
    """Subtracts the mean of each row from it, and divides the row by its standard deviation, in place."""
    scores -= scores.mean(axis=1, keepdims=True)
    spread = np.sqrt(np.einsum("ij,ij->i", scores, scores) / scores.shape[1])[:, None]
    scores /= np.where(spread > 0, spread, 1)


def _best(scores: Doubles, count: int) -> Rows:
    """Returns the columns of the largest scores of each row, best first; ties are in order of columns."""
    if not count:
        return np.empty((len(scores), 0), dtype=np.int64)
    kth = np.partition(scores, scores.shape[1] - count, axis=1)[:, scores.shape[1] - count]
    found = np.empty((len(scores), count), dtype=np.int64)
    for row, (line, least) in enumerate(zip(scores, kth, strict=True)):
        near = np.flatnonzero(line >= least)
        found[row] = near[np.argsort(-line[near], kind="stable")][:count]
    return found
