"""Comparison of two encoders, or of two methods over seeds, on the STS tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .significance import Difference, holm, sentence_clusters, spearman_difference, t_interval
from .sts import Pairs, Task

__all__ = ["compare"]


def compare(
    tasks: Sequence[tuple[Task, Pairs]], before: list[list[Any]], after: list[list[Any]], seeds: bool
) -> list[dict[str, Any]]:
    """One record per task: both scores, the difference with interval and p-value, and the verdict."""
    from scipy.stats import spearmanr

    rows: list[dict[str, Any]] = []
    for number, (task, pairs) in enumerate(tasks):
        old, new = [side[number] for side in before], [side[number] for side in after]
        scores = [[100 * float(spearmanr(each, pairs.gold).statistic) for each in side] for side in (old, new)]
        difference: Difference
        if seeds:
            difference = t_interval([b - a for a, b in zip(*scores, strict=True)])
        else:
            clusters = sentence_clusters(pairs.left, pairs.right)
            difference, _ = spearman_difference(pairs.gold, old, new, clusters)
        means = [sum(side) / len(side) for side in scores]
        rows.append({"task": task.title, "pairs": len(pairs.gold), "a": means[0], "b": means[1], **asdict(difference)})
    for row, p in zip(rows, holm([row["p"] for row in rows]), strict=True):
        row["p_holm"] = p
        row["verdict"] = "no difference seen" if p >= 0.05 else "better" if row["mean"] > 0 else "worse"
    return rows
