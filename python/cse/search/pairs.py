"""Finds all pairs of rows whose cosine reaches a threshold, and the groups of rows that the pairs connect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .vectors import Array, Doubles, Rows, Vectors, exact_products, rounding_error, unit

# Number of rows and number of columns of a block of float32 products (16 MB).
BLOCK_ROWS = 1024
BLOCK_COLUMNS = 4096
# Cosines are rounded to this number of decimals, so that two equal float32 vectors have a cosine of exactly 1.
DECIMALS = 6
# Number of collected pairs at which the groups are updated, to bound memory.
EDGES = 1 << 20


def check_threshold(threshold: float, flag: str = "--threshold") -> float:
    """Returns the threshold; raises ``InputError`` unless it is a cosine, from -1 to 1."""
    if isinstance(threshold, bool) or not -1 <= threshold <= 1:
        raise InputError(f"{flag} must be a cosine, from -1 to 1, got {threshold}")
    return float(threshold)


def near_pairs(
    vectors: Vectors, threshold: float, progress: Callable[[int], None] | None = None
) -> Iterator[tuple[Rows, Rows, Doubles]]:
    """Yields all pairs of rows i < j whose cosine, rounded to six decimals, is at least ``threshold``.

    Products are computed in float32 in blocks of the upper triangle; those that may reach the threshold are computed
    again in float64, so the result equals the result of a brute-force search in float64.

    Args:
        vectors: n vectors of unit length.
        threshold: Minimum cosine of a pair.
        progress: Called with the number of rows done since its last call.

    Yields:
        For m pairs, sorted by i and then by j: the rows i and the rows j, each ``(m,)`` int64, and the cosines ``(m,)``
        float64.
    """
    error = rounding_error(vectors.width) * vectors.longest**2
    limit = np.nextafter(np.float32(threshold - error - 10.0**-DECIMALS), np.float32(-np.inf))
    total = len(vectors)
    for top in range(0, total, BLOCK_ROWS):
        bottom = min(top + BLOCK_ROWS, total)
        block = np.ascontiguousarray(vectors.block(top, bottom))
        for left in range(top, total, BLOCK_COLUMNS):
            right = min(left + BLOCK_COLUMNS, total)
            products = vectors.products(block, left, right)
            near = np.flatnonzero(products.max(axis=1) >= limit)
            for part in (near[start : start + 64] for start in range(0, len(near), 64)):  # keeps few pairs in memory
                lines, columns = np.nonzero(products[part] >= limit)
                first, second = part[lines] + top, columns + left
                above = second > first
                first, second = first[above], second[above]
                if len(first):
                    cosines = np.round(exact_products(vectors, first, vectors, second), DECIMALS)
                    kept = cosines >= threshold
                    if kept.any():
                        yield first[kept], second[kept], cosines[kept]
        if progress:
            progress(bottom - top)


class Groups:
    """Groups of rows that are connected by pairs; pairs can be added in any order.

    Args:
        rows: n, the number of rows.
    """

    def __init__(self, rows: int) -> None:
        self._labels: Rows = np.arange(rows)
        self._pending: list[tuple[Rows, Rows]] = []
        self._count = 0

    def add(self, first: Rows, second: Rows) -> None:
        """Adds m pairs of connected rows, given as two arrays ``(m,)``."""
        self._pending.append((first, second))
        self._count += len(first)
        if self._count >= EDGES:
            self._connect()

    def _connect(self) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        first, second = (np.concatenate(parts) for parts in zip(*self._pending, strict=True))
        rows = np.arange(len(self._labels))
        # Connecting each row with the first row of its group preserves the groups found so far.
        edges = (np.concatenate([first, rows]), np.concatenate([second, self._labels]))
        graph = coo_array((np.ones(len(edges[0]), dtype=np.int8), edges), shape=(len(rows), len(rows)))
        _, labels = connected_components(graph, directed=False)
        _, firsts = np.unique(labels, return_index=True)
        self._labels = firsts[labels]
        self._pending, self._count = [], 0

    def labels(self) -> Rows:
        """Returns the smallest row number in the group of each row, ``(n,)`` int64.

        A row without a pair is a group of its own.
        """
        if self._pending:
            self._connect()
        return self._labels

    def members(self) -> list[Rows]:
        """Returns the sorted rows of each group of at least two, largest group first; ties are ordered by first row."""
        labels = self.labels()
        order = np.argsort(labels, kind="stable")
        _, starts = np.unique(labels[order], return_index=True)
        groups: Iterable[Rows] = np.split(order, starts[1:])
        return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), int(group[0])))


def cosines(vectors: npt.NDArray[np.float32], left: Sequence[int], right: Sequence[int]) -> Doubles:
    """Returns the cosines of m pairs of rows of an ``(n, D)`` matrix, ``(m,)`` float64, rounded to six decimals."""
    points = Array(unit(vectors))
    return np.round(exact_products(points, np.asarray(left), points, np.asarray(right)), DECIMALS)
