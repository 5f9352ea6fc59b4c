"""Vectors of a corpus, and exact search for the k nearest rows by dot product.

Vectors are in float32, or in int8 with a scale per row; they may be mapped from a file.

In a search, products are computed in float32, block by block, so that few are in memory and the vectors are read only
once for up to ``QUERIES`` queries. A row is a candidate if its exact product may be among the k largest, given the
maximum rounding error of float32. The products of the candidates are then computed again in float64 to rank the rows.
The result equals the result of a brute-force search in float64, for any number of threads and any block size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Number of pairs of vectors multiplied in float64 at a time. This many pairs fit in a core's cache, which
# makes the products three times as fast as in larger blocks.
PAIRS = 1024
# Maximum number of queries searched together.
QUERIES = 1024
# Maximum number of float32 products in memory at a time (16 MB).
PRODUCTS = 1 << 22
# Maximum number of results in memory for the queries searched together.
RESULTS = 1 << 22
# Number of candidates above which they are merged into the results.
CANDIDATES = 1 << 18


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of a text, without special tokens.

    Attributes:
        ids: ``(T,)`` int64 numbers of the tokens in the vocabulary.
        vectors: ``(T, D)`` float32, of unit length.
    """

    ids: Rows
    vectors: Floats


class Vectors(ABC):
    """n vectors of D dimensions."""

    width: int
    """D, the number of dimensions."""
    longest: float
    """Upper bound on the Euclidean norms of the vectors."""
    most: int
    """Maximum number of vectors per call of ``products``, to bound the memory of a call."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def block(self, start: int, stop: int) -> Floats:
        """Returns consecutive vectors, ``(stop - start, D)`` float32."""

    @abstractmethod
    def take(self, rows: Rows) -> Doubles:
        """Returns the vectors at some positions, ``(len(rows), D)`` float64."""

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        """Returns the dot products of queries ``(Q, D)`` with ``block(start, stop)``, ``(Q, stop - start)`` float32."""
        block = self.block(start, stop)
        if len(queries) == 1:  # a matrix-vector product, which reads the block once
            return np.asarray(block @ queries[0])[None]
        return np.asarray(queries @ block.T)


class Array(Vectors):
    """Vectors in float32, or in int8 with a scale per row (see ``quantize``).

    Args:
        values: ``(n, D)`` float32 or int8.
        scales: ``(n,)`` float32 for int8: vector i is ``values[i] * scales[i]``.
        longest: Upper bound on the norms; None: it is computed.
    """

    def __init__(self, values: npt.NDArray[Any], scales: Floats | None = None, longest: float | None = None) -> None:
        self.values, self.scales = values, scales
        self.width = int(values.shape[1])
        self.most = 1 << 20 if scales is None else 1 << 16  # of int8 vectors, ``products`` makes copies in float32
        if longest is None:
            blocks = (self.block(start, start + PAIRS) for start in range(0, len(values), PAIRS))
            longest = max((float(np.linalg.norm(block, axis=1).max()) for block in blocks), default=0.0) * (1 + 1e-5)
        self.longest = longest

    def __len__(self) -> int:
        return len(self.values)

    def block(self, start: int, stop: int) -> Floats:
        values: Floats = self.values[start:stop]
        return values if self.scales is None else values.astype(np.float32) * self.scales[start:stop, None]

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        if self.scales is None:
            return super().products(queries, start, stop)
        products = Array(self.values[start:stop].astype(np.float32), None, 0).products(queries, 0, stop - start)
        products *= self.scales[start:stop]
        return products

    def take(self, rows: Rows) -> Doubles:
        values: Doubles = self.values[rows].astype(np.float64)
        return values if self.scales is None else values * self.scales[rows, None].astype(np.float64)


class Unit(Vectors):
    """A view of n vectors that divides each by its norm; zero vectors are not changed."""

    longest = 1.0001  # more than 1, because norms are rounded

    def __init__(self, vectors: Vectors) -> None:
        self._vectors, self.width, self.most = vectors, vectors.width, vectors.most
        norms = np.empty(len(vectors))
        for start in range(0, len(vectors), PAIRS):
            rows = np.arange(start, min(start + PAIRS, len(vectors)))
            norms[rows] = np.linalg.norm(vectors.take(rows), axis=1)
        self._norms = np.where(norms > 0, norms, 1)

    def __len__(self) -> int:
        return len(self._vectors)

    def block(self, start: int, stop: int) -> Floats:
        return (self._vectors.block(start, stop) / self._norms[start:stop, None]).astype(np.float32)

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        products = self._vectors.products(queries, start, stop)
        products /= self._norms[start:stop].astype(np.float32)
        return products

    def take(self, rows: Rows) -> Doubles:
        return self._vectors.take(rows) / self._norms[rows, None]


class Some(Vectors):
    """The vectors at some ascending positions of other vectors."""

    def __init__(self, vectors: Vectors, rows: Rows) -> None:
        self._vectors, self._rows = vectors, rows
        self.width, self.longest, self.most = vectors.width, vectors.longest, vectors.most

    def __len__(self) -> int:
        return len(self._rows)

    def _range(self, start: int, stop: int) -> tuple[int, int, Rows]:
        """Returns the smallest range that contains the vectors start:stop, and their positions in it."""
        rows = self._rows[start:stop]
        first, last = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
        return first, last, rows - first

    def block(self, start: int, stop: int) -> Floats:
        first, last, rows = self._range(start, stop)
        return self._vectors.block(first, last)[rows]

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        first, last, rows = self._range(start, stop)
        return np.ascontiguousarray(self._vectors.products(queries, first, last)[:, rows])

    def take(self, rows: Rows) -> Doubles:
        return self._vectors.take(self._rows[rows])


class Joined(Vectors):
    """Several ``Vectors`` of the same width, at least one, in a row."""

    def __init__(self, parts: Sequence[Vectors]) -> None:
        self.parts, self.width = parts, parts[0].width
        self.longest = max(part.longest for part in parts)
        self.most = min(part.most for part in parts)
        self.starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        """Number of the first vector of each part, followed by the total number of vectors."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    def _pieces(self, start: int, stop: int) -> list[tuple[Vectors, int, int]]:
        """Returns the parts that a range overlaps, each with the overlapping range within the part."""
        first, last = np.searchsorted(self.starts, [start, max(stop - 1, start)], side="right").tolist()
        pieces = []
        for number in range(first - 1, min(last, len(self.parts))):
            part, begin = self.parts[number], int(self.starts[number])
            low, high = max(start - begin, 0), min(stop - begin, len(part))
            if low < high:
                pieces.append((part, low, high))
        return pieces

    def block(self, start: int, stop: int) -> Floats:
        blocks = [part.block(low, high) for part, low, high in self._pieces(start, stop)]
        return blocks[0] if len(blocks) == 1 else np.concatenate([*blocks, np.empty((0, self.width), np.float32)])

    def products(self, queries: Floats, start: int, stop: int) -> Floats:
        products = [part.products(queries, low, high) for part, low, high in self._pieces(start, stop)]
        if len(products) == 1:
            return products[0]
        return np.hstack([*products, np.empty((len(queries), 0), np.float32)])

    def take(self, rows: Rows) -> Doubles:
        vectors = np.empty((len(rows), self.width))
        numbers = np.searchsorted(self.starts, rows, side="right") - 1
        for number in np.unique(numbers):
            at = numbers == number
            vectors[at] = self.parts[number].take(rows[at] - self.starts[number])
        return vectors


def quantize(vectors: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Rounds vectors ``(n, D)`` to int8 ``(n, D)`` with scales ``(n,)`` float32.

    The scale of a row is its largest absolute value / 127, so an element changes by at most half the scale.
    """
    scales = (np.abs(vectors).max(axis=1, initial=0.0) / 127).astype(np.float32)
    values = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])
    return np.clip(values, -127, 127).astype(np.int8), scales


def unit(vectors: npt.NDArray[np.floating]) -> Floats:
    """Returns the rows of an ``(n, D)`` matrix normalised to unit length, in float32; zero rows stay zero."""
    wide = np.asarray(vectors, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    return (wide / np.where(norms > 0, norms, 1)).astype(np.float32)


class Takes(Protocol):
    """What ``exact_products`` needs of vectors."""

    def take(self, rows: Rows) -> Doubles: ...


def exact_products(left: Takes, left_rows: Rows, right: Takes, right_rows: Rows) -> Doubles:
    """Returns the dot products of pairs of rows in float64, ``(len(left_rows),)``.

    The product of a pair depends only on its two vectors, not on the other pairs, so identical vectors have
    identical products.
    """
    products = np.empty(len(left_rows))
    for start in range(0, len(left_rows), PAIRS):
        part = slice(start, start + PAIRS)
        products[part] = np.einsum("ij,ij->i", left.take(left_rows[part]), right.take(right_rows[part]))
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
    u is 2^-24, and n is the width plus 8; the 8 covers further roundings (of scales, norms and thresholds).
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
    array = Array(queries)
    # Upper bound on the rounding error of the products of each query.
    error = rounding_error(vectors.width) * vectors.longest * np.linalg.norm(queries.astype(np.float64), axis=1)
    step = max(1, min(vectors.most, PRODUCTS // count))
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
