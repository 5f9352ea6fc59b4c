"""Alignment and uniformity (Wang and Isola 2020; SimCSE, section 2.3), on the unit sphere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["alignment", "uniformity", "unit"]

Vectors = npt.NDArray[np.float64]


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    """Rows put on the unit sphere, in float64."""
    wide = vectors.astype(np.float64)
    points: Vectors = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return points


def alignment(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> float:
    """Mean |x - y|^2 over positive pairs ``(n, D)``, ``(n, D)``; lower is closer."""
    return float(((unit(left) - unit(right)) ** 2).sum(1).mean())


def uniformity(vectors: npt.NDArray[np.floating]) -> float:
    """ln mean exp(-2 |x - y|^2) over all pairs of ``(n, D)``; lower is more evenly spread, 0 is one point."""
    points = unit(vectors)
    n, total = len(points), 0.0
    for start in range(0, n, 1024):  # by blocks: n^2 cosines at once would not fit for large n
        squared = np.maximum(2.0 - 2.0 * (points[start : start + 1024] @ points.T), 0.0)
        total += float(np.exp(-2.0 * squared).sum())
    return float(np.log((total - n) / (n * (n - 1))))
