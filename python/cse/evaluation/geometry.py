"""Geometry of normalised embeddings: alignment, uniformity (Wang and Isola 2020), effective rank and mean cosine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .base import Encodes, Evaluation, Report, embed, read_pairs

Vectors = npt.NDArray[np.float64]


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    """Returns the rows of an ``(n, D)`` matrix normalised to unit length, in float64."""
    wide = vectors.astype(np.float64)
    points: Vectors = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return points


def nearest_others(vectors: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], Vectors]:
    """Finds the nearest other row for each row of an ``(n, D)`` matrix; returns indices and cosines, ``(n,)`` each."""
    points = unit(vectors)
    cosines = points @ points.T
    np.fill_diagonal(cosines, -np.inf)
    return cosines.argmax(1), cosines.max(1)


def alignment(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> float:
    """Returns the mean |x - y|^2 over corresponding rows of two ``(n, D)`` matrices, normalised to unit length.

    It lies between 0 and 4; lower means that the pairs are closer.
    """
    return float(((unit(left) - unit(right)) ** 2).sum(1).mean())


def uniformity(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the logarithm of the mean of exp(-2 |x - y|^2) over all pairs of different rows of an ``(n, D)`` matrix.

    Rows are first normalised to unit length. Lower is more uniform; 0 means that all embeddings are identical.
    """
    if len(vectors) < 2:
        return float("nan")
    points = unit(vectors)
    n, total = len(points), 0.0
    for start in range(0, n, 1024):  # in blocks, since n^2 cosines may not fit in memory
        squared = np.maximum(2.0 - 2.0 * (points[start : start + 1024] @ points.T), 0.0)
        total += float(np.exp(-2.0 * squared).sum())
    return float(np.log((total - n) / (n * (n - 1))))


def effective_rank(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the effective rank of an ``(n, D)`` matrix (Roy and Vetterli 2007), from 1 to min(n, D).

    It is exp(H), where H is the entropy of the singular values divided by their sum. Rows are first normalised to unit
    length.
    """
    values = np.linalg.svd(unit(vectors), compute_uv=False)
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mean_cosine(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the mean cosine over all pairs of different rows of an ``(n, D)`` matrix; near 0 for isotropic rows."""
    if len(vectors) < 2:
        return float("nan")
    points = unit(vectors)
    n = len(points)
    return float((np.square(points.sum(0)).sum() - n) / (n * (n - 1)))


class Geometry(Evaluation):
    """Geometry of the embeddings of the sentences in a TSV file of scored pairs.

    Alignment is computed over the pairs with a gold score above 4.
    """

    summary = "alignment, uniformity, effective rank and mean cosine on --data FILE.tsv (score, sentence1, sentence2)"

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        if data is None:
            raise InputError("--data: name a TSV file of score, sentence1, sentence2")
        self.pairs = read_pairs(data)
        self.texts = list(dict.fromkeys([*self.pairs.left, *self.pairs.right]))

    def work(self) -> int:
        """Returns the number of distinct sentences."""
        return len(self.texts)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        """Returns a report with one row."""
        vectors, left, right = embed(encoder, [self.texts, self.pairs.left, self.pairs.right], progress)
        close = self.pairs.gold > 4
        figures = {
            "sentences": len(self.texts),
            "alignment": alignment(left[close], right[close]) if close.any() else float("nan"),
            "uniformity": uniformity(vectors),
            "effective_rank": effective_rank(vectors),
            "mean_cosine": mean_cosine(vectors),
        }
        return Report([{"task": str(self.data), **figures}])
