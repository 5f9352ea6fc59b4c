"""Vectors of a corpus, and exact search for the k nearest rows by dot product.

Products are computed in float32, block by block. A row is a candidate if its exact product may be among the k largest,
given the maximum rounding error of float32. The products of the candidates are then computed again in float64, so that
the result is that of a brute-force search in float64, for any number of threads and any block size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

# Number of pairs of vectors multiplied in float64 at a time, which fit in the cache of a core.
PAIRS = 1024
# Maximum numbers: of queries searched together, and of results for them; of float32 products in memory at a time, and
# of vectors multiplied by a query; and of candidates before they are merged into the results.
QUERIES, RESULTS = 1024, 1 << 22
PRODUCTS, BLOCK = 1 << 22, 1 << 20
CANDIDATES = 1 << 18


class Vectors:
    """n vectors in float32, in arrays ``(n_i, D)``, which may be mapped from files.

    ``longest`` is an upper bound on their Euclidean norms; None: it is computed.
    """

    def __init__(self, arrays: Sequence[Floats], longest: float | None = None) -> None:
        self.arrays, self.width = arrays, int(arrays[0].shape[1])
        self.starts = np.cumsum([0, *map(len, arrays)])
        if longest is None:
            norms = (float(np.linalg.norm(block, axis=1).max()) for _, block in self.blocks(PAIRS))
            longest = max(norms, default=0.0) * (1 + 1e-5)
        self.longest = longest

    def __len__(self) -> int:
        return int(self.starts[-1])

    def rows(self, rows: Numbers) -> Floats:
        """Returns the vectors at some positions, ``(len(rows), D)`` float32."""
        vectors = np.empty((len(rows), self.width), dtype=np.float32)
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            at = numbers == number
            vectors[at] = self.arrays[number][rows[at] - self.starts[number]]
        return vectors

    def blocks(self, size: int) -> Iterator[tuple[int, Floats]]:
        """Yields all vectors in order, in views of at most ``size``, with the number of the first."""
        for first, array in zip(self.starts.tolist(), self.arrays, strict=False):
            for start in range(0, len(array), size):
                yield first + start, array[start : start + size]


def unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Returns the rows of an ``(n, D)`` matrix normalised to unit length, in float32; zero rows stay zero."""
    wide = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(norms > 0, norms, 1)).astype(np.float32)


def exact_products(queries: Floats, numbers: Numbers, vectors: Vectors, rows: Numbers) -> Doubles:
    """Returns the dot products of queries and vectors, given as pairs of numbers, in float64, ``(pairs,)``."""
    products = np.empty(len(rows))
    for start in range(0, len(rows), PAIRS):
        part = slice(start, start + PAIRS)
        pair = queries[numbers[part]].astype(np.float64), vectors.rows(rows[part]).astype(np.float64)
        products[part] = np.einsum("ij,ij->i", *pair)
    return products


def rounding_error(width: int) -> float:
    """Returns an upper bound on the error of a dot product in float32, relative to the product of the two norms.

    |fl(x.y) - x.y| <= g |x|.|y| with g = n u / (1 - n u), in any order of summation (Higham 2002, section 3.1). Here
    u is 2^-24, and n is the width plus 8; the 8 covers further roundings (of norms and thresholds).
    """
    scaled = (width + 8) * 2.0**-24
    return scaled / (1 - scaled)


def nearest(vectors: Vectors, queries: Floats, k: int) -> tuple[Doubles, Numbers]:
    """Finds the k vectors with the largest dot product for each query ``(Q, D)``, at most all n."""
    k = min(k, len(vectors))
    scores, rows = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    together = max(1, min(QUERIES, RESULTS // max(k, 1)))
    for start in range(0, len(queries) if k else 0, together):
        part = slice(start, start + together)
        scores[part], rows[part] = _search(vectors, np.ascontiguousarray(queries[part], dtype=np.float32), k)
    return scores, rows


def _search(vectors: Vectors, queries: Floats, k: int) -> tuple[Doubles, Numbers]:
    count = len(queries)
    error = rounding_error(vectors.width) * vectors.longest * np.linalg.norm(queries.astype(np.float64), axis=1)
    best = np.full((count, k), -np.inf), np.zeros((count, k), dtype=np.int64)
    limit = np.full(count, -np.inf, dtype=np.float32)
    pending: list[tuple[Numbers, Numbers]] = []
    candidates, merged = 0, 0
    for start, block in vectors.blocks(max(1, min(BLOCK, PRODUCTS // count))):
        products = queries @ block.T
        stop = start + len(block)
        if np.isneginf(limit).any() and len(block) > k:
            # Each product, also the k-th largest one, differs from the exact one by at most the error.
            limit = _below(np.partition(products, -k, axis=1)[:, -k] - 2 * error)
        numbers, columns = np.divmod(np.flatnonzero(products >= limit[:, None]), len(block))  # faster than nonzero
        pending.append((numbers, columns + start))
        candidates += len(numbers)
        # About k candidates are expected between rows n and 2 n, so that both merges and candidates are few.
        if stop >= 2 * merged or candidates > CANDIDATES or stop == len(vectors):
            numbers, rows = (np.concatenate(parts) for parts in zip(*pending, strict=True))
            best = _merged(best, numbers, rows, exact_products(queries, numbers, vectors, rows))
            limit = _below(best[0][:, -1] - error)
            pending, candidates, merged = [], 0, stop
    return best


def _below(limit: Doubles) -> Floats:
    """Returns limits in float32, rounded down."""
    return np.nextafter(limit.astype(np.float32), np.float32(-np.inf))


def _merged(best: tuple[Doubles, Numbers], numbers: Numbers, rows: Numbers, scores: Doubles) -> tuple[Doubles, Numbers]:
    """Returns each query's k best among its current best ``(Q, k)`` and candidates: query number, row and score."""
    count, k = best[0].shape
    numbers = np.concatenate([np.repeat(np.arange(count), k), numbers])
    scores, rows = np.concatenate([best[0].ravel(), scores]), np.concatenate([best[1].ravel(), rows])
    order = np.lexsort((rows, -scores, numbers))
    kept = order[np.searchsorted(numbers[order], np.arange(count))[:, None] + np.arange(k)]
    return scores[kept], rows[kept]
