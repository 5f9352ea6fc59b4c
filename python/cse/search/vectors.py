"""Vectors of a corpus, and exact search for the k nearest rows by dot product.

In a search, products are computed in float32, block by block, so that few are in memory and the vectors are read only
once for up to ``QUERIES`` queries. A row is a candidate if its exact product may be among the k largest, given the
maximum rounding error of float32. The products of the candidates are then computed again in float64 to rank the rows.
The result equals the result of a brute-force search in float64, for any number of threads and any block size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Number of pairs of vectors multiplied in float64 at a time. This many pairs fit in a core's cache, which
# makes the products three times as fast as in larger blocks.
PAIRS = 1024
# Maximum number of vectors multiplied by queries at a time.
ROWS = 1 << 20
# Maximum number of queries searched together.
QUERIES = 1024
# Maximum number of float32 products in memory at a time (16 MB).
PRODUCTS = 1 << 22
# Maximum number of results in memory for the queries searched together.
RESULTS = 1 << 22
# Number of candidates above which they are merged into the results.
CANDIDATES = 1 << 18


class Vectors:
    """n vectors of D dimensions in float32, in one array or in several, which may be mapped from files.

    Args:
        parts: Arrays ``(n_i, D)`` float32, at least one.
        longest: Upper bound on the Euclidean norms of the vectors; None: it is computed.
    """

    def __init__(self, parts: Sequence[Floats], longest: float | None = None) -> None:
        self.parts, self.width = parts, int(parts[0].shape[1])
        self.starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        """Number of the first vector of each part, followed by the total number of vectors."""
        if longest is None:
            blocks = (part[start : start + PAIRS] for part in parts for start in range(0, len(part), PAIRS))
            longest = max((float(np.linalg.norm(block, axis=1).max()) for block in blocks), default=0.0) * (1 + 1e-5)
        self.longest = longest

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _pieces(self, start: int, stop: int) -> list[Floats]:
        """Returns the vectors start:stop, as views of the parts; at least one, which may be empty."""
        pieces = [
            part[max(start - first, 0) : max(stop - first, 0)]
            for part, first in zip(self.parts, self.starts.tolist(), strict=False)
            if first < stop and start < first + len(part)
        ]
        return pieces or [self.parts[0][:0]]

    def block(self, start: int, stop: int) -> Floats:
        """Returns consecutive vectors, ``(stop - start, D)`` float32."""
        pieces = self._pieces(start, stop)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def rows(self, rows: Rows) -> Floats:
        """Returns the vectors at some positions, ``(len(rows), D)`` float32."""
        vectors = np.empty((len(rows), self.width), dtype=np.float32)
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(numbers).tolist():
            at = numbers == number
            vectors[at] = self.parts[number][rows[at] - self.starts[number]]
        return vectors

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        """Returns the dot products of queries ``(Q, D)`` with ``block(start, stop)``, ``(Q, stop - start)`` float32."""
        if len(queries) == 1:  # a matrix-vector product, which reads the block once
            products = [np.asarray(piece @ queries[0])[None] for piece in self._pieces(start, stop)]
        else:
            products = [np.asarray(queries @ piece.T) for piece in self._pieces(start, stop)]
        return products[0] if len(products) == 1 else np.hstack(products)


def unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Returns the rows of an ``(n, D)`` matrix normalised to unit length, in float32; zero rows stay zero."""
    wide = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(norms > 0, norms, 1)).astype(np.float32)


def exact_products(left: Vectors, left_rows: Rows, right: Vectors, right_rows: Rows) -> Doubles:
    """Returns the dot products of pairs of rows in float64, ``(len(left_rows),)``.

    The product of a pair depends only on its two vectors, not on the other pairs, so identical vectors have
    identical products.
    """
    products = np.empty(len(left_rows))
    for start in range(0, len(left_rows), PAIRS):
        part = slice(start, start + PAIRS)
        pair = (side.rows(rows[part]).astype(np.float64) for side, rows in ((left, left_rows), (right, right_rows)))
        products[part] = np.einsum("ij,ij->i", *pair)
    return products


def top(scores: npt.NDArray[np.floating], k: int) -> Rows:
    """Returns the positions of the k largest scores ``(n,)``, best first; ties are in their order."""
    k = min(k, len(scores))
    if not k:
        return np.empty(0, dtype=np.int64)
    near = np.flatnonzero(scores >= np.partition(scores, len(scores) - k)[len(scores) - k])
    return near[np.argsort(-scores[near], kind="stable")][:k]


def rounding_error(width: int) -> float:
    """Returns an upper bound on the error of a dot product in float32, relative to the product of the two norms.

    |fl(x.y) - x.y| <= g |x|.|y| with g = n u / (1 - n u), in any order of summation (Higham 2002, section 3.1). Here
    u is 2^-24, and n is the width plus 8; the 8 covers further roundings (of norms and thresholds).
    """
    scaled = (width + 8) * 2.0**-24
    return scaled / (1 - scaled)


def nearest(vectors: Vectors, queries: Floats, k: int) -> tuple[Doubles, Rows]:
    """Finds the k rows with the largest dot product for each query.

    Args:
        vectors: n vectors of D dimensions.
        queries: ``(Q, D)`` float32.
        k: Number of rows per query, at least 1; at most n are returned.

    Returns:
        The products ``(Q, min(k, n))`` float64, descending, and row numbers, int64, of the same shape. Rows with
        equal products are in the order of their numbers.
    """
    k = min(k, len(vectors))
    scores, rows = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    together = max(1, min(QUERIES, RESULTS // max(k, 1)))
    for start in range(0, len(queries) if k else 0, together):
        part = slice(start, start + together)
        scores[part], rows[part] = _search(vectors, np.ascontiguousarray(queries[part], dtype=np.float32), k)
    return scores, rows


def _search(vectors: Vectors, queries: Floats, k: int) -> tuple[Doubles, Rows]:
    count, total = len(queries), len(vectors)
    array = Vectors([queries])
    # Upper bound on the rounding error of the products of each query.
    error = rounding_error(vectors.width) * vectors.longest * np.linalg.norm(queries.astype(np.float64), axis=1)
    step = max(1, min(ROWS, PRODUCTS // count))
    first = min(total, max(step, k))

    products = vectors.products(queries, 0, first)
    # Each product differs from the exact one by at most the error, and so does the k-th largest product. The product
    # of a row that is among the exact k best is therefore at most 2 * error below the k-th largest product.
    kth = np.partition(products, first - k, axis=1)[:, first - k].astype(np.float64)
    best = _merged(None, *_at_least(products, _below(kth - 2 * error)), array, vectors, k)
    limit = _below(best[0][:, -1] - error)

    pending: list[tuple[Rows, Rows]] = []
    candidates, merged = 0, first
    for start in range(first, total, step):
        stop = min(start + step, total)
        products = vectors.products(queries, start, stop)
        near = np.flatnonzero(products.max(axis=1) >= limit)
        if len(near):
            numbers, rows = _at_least(products[near] if len(near) < count else products, limit[near])
            pending.append((near[numbers], rows + start))
            candidates += len(rows)
        # A random row is among the k best of n with probability k / n, so about k candidates are expected between rows
        # n and 2 n. Merging whenever the number of rows has doubled keeps both merges and candidates few.
        if pending and (stop >= 2 * merged or candidates > CANDIDATES or stop == total):
            numbers, rows = (np.concatenate(parts) for parts in zip(*pending, strict=True))
            best = _merged(best, numbers, rows, array, vectors, k)
            limit = _below(best[0][:, -1] - error)
            pending, candidates, merged = [], 0, stop
    return best


def _below(limit: Doubles) -> Floats:
    """Returns limits in float32, rounded down."""
    return np.nextafter(limit.astype(np.float32), np.float32(-np.inf))


def _at_least(products: Floats, limit: Floats) -> tuple[Rows, Rows]:
    """Returns the rows and columns of the products ``(Q, B)`` that are not below the limits ``(Q,)``."""
    numbers, columns = np.divmod(np.flatnonzero(products >= limit[:, None]), products.shape[1])  # faster than nonzero
    return numbers, columns


def _merged(
    best: tuple[Doubles, Rows] | None, numbers: Rows, rows: Rows, queries: Vectors, vectors: Vectors, k: int
) -> tuple[Doubles, Rows]:
    """Returns each query's k best among its current best ``(Q, k)`` and the candidates, given as (query, row) pairs.

    Rows with equal scores are in the order of their numbers.
    """
    scores = exact_products(queries, numbers, vectors, rows)
    count = len(queries)
    if best is not None:
        numbers = np.concatenate([np.repeat(np.arange(count), k), numbers])
        scores = np.concatenate([best[0].ravel(), scores])
        rows = np.concatenate([best[1].ravel(), rows])
    order = np.lexsort((rows, -scores, numbers))
    kept = order[np.searchsorted(numbers[order], np.arange(count))[:, None] + np.arange(k)]
    return scores[kept], rows[kept]
