"""Exact search for the k nearest rows by dot product.

Products are computed in float32, block by block, so that few are in memory and the vectors are read only once for up to
``QUERIES`` queries. A row is a candidate if its exact product may be among the k largest, given the maximum rounding
error of float32. The products of the candidates are then computed again in float64 to rank the rows. The result equals
the result of a brute-force search in float64, for any number of threads and any block size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .vectors import Float32, Vectors, exact_products, rounding_error

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Maximum number of queries searched together.
QUERIES = 1024
# Maximum number of float32 products in memory at a time (16 MB).
PRODUCTS = 1 << 22
# Maximum number of results in memory for the queries searched together.
RESULTS = 1 << 22
# Number of candidates above which they are merged into the results.
CANDIDATES = 1 << 18


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


def best_first(numbers: Rows, scores: Doubles, rows: Rows, count: int, k: int) -> tuple[Doubles, Rows]:
    """Returns the k best results of each query, best first; rows with equal scores are in the order of their numbers.

    Args:
        numbers: ``(M,)`` query number of each result.
        scores: ``(M,)`` float64.
        rows: ``(M,)`` int64 row numbers.
        count: Number of queries, Q.
        k: Number of results per query; each query has at least k.

    Returns:
        Scores and row numbers, both ``(Q, k)``.
    """
    order = np.lexsort((rows, -scores, numbers))
    begins = np.searchsorted(numbers[order], np.arange(count))
    kept = order[begins[:, None] + np.arange(k)]
    return scores[kept], rows[kept]


def _search(vectors: Vectors, queries: Floats, k: int) -> tuple[Doubles, Rows]:
    count, total = len(queries), len(vectors)
    given = Float32(queries)
    # Upper bound on the rounding error of the products of each query.
    error = rounding_error(vectors.width) * vectors.longest * np.linalg.norm(queries.astype(np.float64), axis=1)
    step = max(1, min(vectors.most, PRODUCTS // count))
    first = min(total, max(step, k))

    products = vectors.products(queries, 0, first)
    # Each product differs from the exact one by at most the error, and so does the k-th largest product. The product
    # of a row that is among the exact k best is therefore at most 2 * error below the k-th largest product.
    kth = np.partition(products, first - k, axis=1)[:, first - k].astype(np.float64)
    found = _at_least(products, _below(kth - 2 * error))
    best = _merged(None, *found, given, vectors, k)
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
            best = _merged(best, numbers, rows, given, vectors, k)
            limit = _below(best[0][:, -1] - error)
            pending, candidates, merged = [], 0, stop
    return best


def _below(limit: Doubles) -> Floats:
    """Returns limits in float32, rounded down."""
    return np.nextafter(limit.astype(np.float32), np.float32(-np.inf))


def _at_least(products: Floats, limit: Floats) -> tuple[Rows, Rows]:
    """Returns the rows and columns of the products ``(Q, B)`` that are not below the limits ``(Q,)``."""
    width = products.shape[1]
    places = np.flatnonzero(products >= limit[:, None])
    numbers, columns = np.divmod(places, width)
    return numbers, columns


def _merged(
    best: tuple[Doubles, Rows] | None, numbers: Rows, rows: Rows, queries: Float32, vectors: Vectors, k: int
) -> tuple[Doubles, Rows]:
    """Returns each query's k best among its current best ``(Q, k)`` and the candidates, given as (query, row) pairs."""
    scores = exact_products(queries, numbers, vectors, rows)
    count = len(queries)
    if best is not None:
        numbers = np.concatenate([np.repeat(np.arange(count), k), numbers])
        scores = np.concatenate([best[0].ravel(), scores])
        rows = np.concatenate([best[1].ravel(), rows])
    return best_first(numbers, scores, rows, count, k)
