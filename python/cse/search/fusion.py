"""Fusion of several rankings."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["fuse"]

CONSTANT = 60


def fuse(rankings: Sequence[Sequence[int]], k: int, constant: int = CONSTANT) -> list[tuple[int, float]]:
    """Combines rankings by reciprocal rank fusion (Cormack, Clarke and Buettcher 2009).

    The score of a row is the sum of 1 / (constant + rank) over the rankings that contain the row; ranks start at 1.

    Args:
        rankings: Rankings, each a sequence of row numbers, best first.
        k: Maximum number of rows to return.
        constant: The constant in the score; 60 in the paper.

    Returns:
        Rows and scores, best first; rows with equal scores are in row order.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, row in enumerate(ranking, start=1):
            scores[row] = scores.get(row, 0.0) + 1 / (constant + rank)
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
