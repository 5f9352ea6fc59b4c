"""Compares two encoders, or two training methods over several seeds, by their reports of the same evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from .base import Report
from .significance import (
    Difference,
    mean_score,
    resampled_difference,
    sentence_clusters,
    spearman_score,
    t_interval,
)

__all__ = ["compare"]


def compare(before: Sequence[Report], after: Sequence[Report], seeds: bool) -> list[dict[str, Any]]:
    """Compares two sides (encoders or training methods), each with one report per checkpoint.

    Args:
        before: Reports of the first side.
        after: Reports of the second side, of the same evaluation.
        seeds: True: compare methods by a paired t-test over seeds. False: compare checkpoints by a bootstrap over
            examples.

    Returns:
        One record per task: ``task``, ``examples``, the scores ``a`` and ``b`` of the two sides, and ``mean``, ``low``,
        ``high`` and ``p`` of the difference b - a. For an evaluation without per-example values (geometry),
        one record for each metric in each row of the reports (``Report.rows``), without ``low``, ``high`` and ``p``.
    """
    records: list[dict[str, Any]] = []
    if not before[0].samples:
        return [record for row in range(len(before[0].rows)) for record in plain_differences(before, after, row)]
    for number, sample in enumerate(before[0].samples):
        old, new = ([report.samples[number].values for report in side] for side in (before, after))
        score = mean_score if sample.gold is None else spearman_score
        scores = [[score(values, sample.gold) for values in side] for side in (old, new)]
        difference: Difference
        if seeds:
            difference = t_interval([b - a for a, b in zip(*scores, strict=True)])
        else:
            clusters = sentence_clusters(*sample.sentences) if sample.sentences else None
            difference, _ = resampled_difference(old, new, sample.gold, clusters)
        a, b = (sum(side) / len(side) for side in scores)
        examples = len(sample.values)
        records.append({"task": sample.task, "examples": examples, "a": a, "b": b, **asdict(difference)})
    return records


def plain_differences(before: Sequence[Report], after: Sequence[Report], row: int) -> list[dict[str, Any]]:
    """Returns one record per metric in row ``row`` of the reports: the means over checkpoints and their difference."""
    first = before[0].rows[row]
    records = []
    for name, value in first.items():
        if isinstance(value, float):
            a, b = (sum(report.rows[row][name] for report in side) / len(side) for side in (before, after))
            size = f" ({first['dims']} dimensions)" if "dims" in first else ""
            records.append({"task": f"{first['task']}{size}: {name}", "examples": None, "a": a, "b": b, "mean": b - a})
    return records
