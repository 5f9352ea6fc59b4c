"""Sampling of mixing partners: the candidates with which positives are mixed to form mixed negatives (MixCSE).

``cse.losses.mixed`` computes the mixtures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from .rng import MIX, bits

__all__ = ["partners", "valid_candidates"]

Rows = npt.NDArray[np.int64]


def partners(
    rows: Rows,
    seed: int,
    epoch: int,
    anchor_views: int,
    candidate_views: int,
    valid: npt.NDArray[np.bool_] | None = None,
    excluded: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int64]:
    """Samples the candidate with which the positive of each anchor is mixed.

    Args:
        rows: ``(B,)`` int64 row numbers.
        seed: Seed of the run.
        epoch: Epoch, from 0.
        anchor_views: Number of views that contain anchors; anchors are ordered by view, then by row.
        candidate_views: Number of views to sample from; candidates are ordered by view, then by row.
        valid: ``(candidate_views, B)`` bool, True where a candidate may be sampled. None: all candidates are valid.
        excluded: ``(B, B)`` bool, True for pairs of rows that are not mixed, such as rows with the same sentence.

    Returns:
        ``(anchor_views * B,)`` int64 positions among the ``candidate_views * B`` candidates. Each is drawn uniformly
        from the candidates of other rows that are valid and not excluded. If there are none, it is the position of a
        candidate of the anchor's own row, which means that the anchor has no mixed negative.
    """
    batch = len(rows)
    own = np.arange(batch)
    # Within a view, the candidates for row n are counted in this order: n + 1, n + 2, ..., then 0, 1, ..., n - 1.
    others = (own[:, None] + 1 + np.arange(batch - 1)[None, :]) % batch  # (B, B - 1)
    found = []
    for view in range(anchor_views):
        random = bits(seed, epoch, rows, MIX + view)
        if (valid is None or valid.all()) and excluded is None:
            draw = (random % np.uint64((batch - 1) * candidate_views)).astype(np.int64)
            found.append(draw // (batch - 1) * batch + others[own, draw % (batch - 1)])
            continue
        holds = np.ones((candidate_views, batch), dtype=bool) if valid is None else valid
        allowed = np.concatenate([holds[candidate][others] for candidate in range(candidate_views)], axis=1)
        if excluded is not None:
            allowed &= np.tile(~np.take_along_axis(excluded, others, axis=1), (1, candidate_views))
        places = np.concatenate([candidate * batch + others for candidate in range(candidate_views)], axis=1)
        counts = allowed.sum(1)
        nth = (random % np.maximum(counts, 1).astype(np.uint64)).astype(np.int64)
        at = np.argmax(np.cumsum(allowed, axis=1) > nth[:, None], axis=1)
        found.append(np.where(counts > 0, places[own, at], view * batch + own))
    return np.concatenate(found)


def valid_candidates(
    names: Sequence[str], masks: Mapping[str, npt.NDArray[np.bool_]], rows: int
) -> npt.NDArray[np.bool_] | None:
    """Returns the argument ``valid`` of ``partners``, ``(len(names), rows)`` bool; None if no view has a mask.

    Args:
        names: Names of the views to sample from.
        masks: ``(rows,)`` bool by view name, True where the view has a text. A view without a mask has a text in every
            row.
        rows: Number of rows of the batch.
    """
    every = np.ones(rows, dtype=bool)
    return np.stack([masks.get(name, every) for name in names]) if masks else None
