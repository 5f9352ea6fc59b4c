"""When two scores are the same: if they differ by no more than rounding.

Embeddings are float32. Texts whose vectors are equal in exact arithmetic, such as the words of a text in another order
under a mean of word vectors, get vectors that differ in the last digits, and so do their scores. An order of such
scores would be that of the noise, and a grid of decimals divides some of them. The functions here make scores equal
that are the same, whatever the norms of the vectors; then a stable sort, a rank or ``==`` gives the right result.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.floating] | float

TIE = 1e-6
"""Scores that differ by no more than this, times their size, are the same. The size of a cosine is 1, and the size of a dot
product is the product of the two norms."""
WIDEST = 2
"""A run of scores, each the same as the next one, is divided where it becomes wider than this many times ``TIE``."""
FLOAT64 = 1e-3
"""Size of a result computed in float64, relative to its terms: such results are the same within 1e-9 of these."""


def comparable(scores: npt.NDArray[np.floating], sizes: Sizes = 1.0) -> Scores:
    """Returns scores in float64, in which those that are the same are equal: to the largest of them.

    Args:
        scores: ``(..., n)``; the n scores of a row are compared with each other.
        sizes: The size of each score, broadcast to the shape of ``scores``; see ``TIE``.
    """
    values = np.asarray(scores, dtype=np.float64)
    order = np.argsort(-values, axis=-1)
    ordered = np.take_along_axis(values, order, -1)
    limits = np.take_along_axis(np.broadcast_to(TIE * np.asarray(sizes), values.shape), order, -1)
    with np.errstate(invalid="ignore"):  # differences of infinities
        begins = np.ones(values.shape, dtype=bool)
        begins[..., 1:] = ~(-np.diff(ordered) <= np.maximum(limits[..., 1:], limits[..., :-1]))
        leaders = _leaders(begins)
        first, limit = (np.take_along_axis(each, leaders, -1) for each in (ordered, limits))
        if (first - ordered > WIDEST * np.maximum(limit, limits)).any():
            _divide(begins, ordered, limits)
            leaders = _leaders(begins)
    result = np.empty_like(values)
    np.put_along_axis(result, order, np.take_along_axis(ordered, leaders, -1), -1)
    return result


def _leaders(begins: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Returns for each place the place at which its run begins."""
    places = np.where(begins, np.arange(begins.shape[-1]), 0)
    leaders: npt.NDArray[np.int64] = np.maximum.accumulate(places, axis=-1)
    return leaders


def _divide(begins: npt.NDArray[np.bool_], ordered: Scores, limits: Scores) -> None:
    """Marks in ``begins`` where a run becomes too wide. Where it is divided depends on where it was divided before, so
    that the places are visited in order."""
    first, limit = ordered[..., 0], limits[..., 0]
    for place in range(1, ordered.shape[-1]):
        score, own = ordered[..., place], limits[..., place]
        begins[..., place] |= first - score > WIDEST * np.maximum(limit, own)
        first, limit = (np.where(begins[..., place], *each) for each in ((score, first), (own, limit)))


def at_least(scores: npt.NDArray[np.floating], other: npt.ArrayLike, sizes: Sizes = 1.0) -> npt.NDArray[np.bool_]:
    """Returns where scores are larger than ``other`` or the same; arguments are broadcast."""
    reached: npt.NDArray[np.bool_] = np.asarray(scores) >= np.asarray(other) - TIE * np.asarray(sizes)
    return reached


def best(scores: npt.NDArray[np.floating], k: int, sizes: Sizes = 1.0) -> npt.NDArray[np.int64]:
    """Returns the positions of the k largest of ``(..., n)`` scores, best first, as ``(..., min(k, n))``; those of
    scores that are the same are in ascending order."""
    n = scores.shape[-1]
    if not (k := min(k, n)):
        return np.empty((*scores.shape[:-1], 0), dtype=np.int64)
    sizes = np.broadcast_to(sizes, scores.shape)
    least = np.partition(scores, n - k, axis=-1)[..., n - k, None]
    near = at_least(scores, least, WIDEST * sizes.max(-1, keepdims=True))
    width = int(near.sum(-1).max())
    places = np.sort(np.argpartition(-scores, width - 1, axis=-1)[..., :width], axis=-1)
    merged = comparable(np.take_along_axis(scores, places, -1), np.take_along_axis(sizes, places, -1))
    order = np.argsort(-merged, axis=-1, kind="stable")[..., :k]
    found: npt.NDArray[np.int64] = np.take_along_axis(places, order, -1)
    return found


def differences(before: npt.NDArray[np.floating], after: npt.NDArray[np.floating]) -> Scores:
    """Returns ``after`` minus ``before``, both ``(n,)`` results computed in float64. The difference of two results that
    are the same is 0, and differences that are the same are equal."""
    scale = FLOAT64 * max(float(np.abs(side).max(initial=0.0)) for side in (before, after))
    change = np.asarray(after - before, dtype=np.float64)
    return comparable(np.where(np.abs(change) <= TIE * scale, 0.0, change), scale)
