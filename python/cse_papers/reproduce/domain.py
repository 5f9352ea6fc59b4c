"""The table ``domain``: losses that weight hard negatives, in training on the documents of retrieval collections.

A row is trained on the documents of each collection. The changes of nDCG@10 from the untrained model have 95 %
intervals over queries and seeds, and are compared with those of the standard loss at the same temperature.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .bootstrap import Vector, mean_interval
from .stored import Records
from .suites import Table

BEFORE = "before training"


def changes(table: Table, sets: Mapping[str, Records]) -> tuple[list[str], list[list[str]]]:
    """Returns the names of the columns, and the changes of each row that has runs on all collections."""
    found: dict[str, dict[str, dict[tuple[str, int], Vector]]] = {}  # by row, collection, and set and seed
    for name, records in sets.items():
        scores = {key: np.array(each["draws"]["ndcg"], dtype=np.float64) / 100 for key, each in records.items()}
        before = {column: each for (_, column, seed), each in scores.items() if seed is None}
        for (method, column, seed), each in sorted(scores.items(), key=str):
            if seed is not None and column in before:
                found.setdefault(method, {}).setdefault(str(column), {})[name, seed] = each - before[column]
    collections = sorted({column for runs in found.values() for column in runs})
    rows = []
    for row in table.rows:
        own = found.get(row.name, {})
        standard = found.get(row.name.replace(row.method.rpartition(", ")[0], "standard"), {})
        if row.method == BEFORE or own.keys() != set(collections):
            continue
        values = [np.array(list(own[key].values())) for key in collections]
        both = [[run for run in own[key] if run in standard.get(key, {})] for key in collections]
        difference = ""
        if own is not standard and all(both):
            pairs = [(own[key], standard[key], runs) for key, runs in zip(collections, both, strict=True)]
            difference = mean_interval([np.array([a[run] - b[run] for run in runs]) for a, b, runs in pairs])
        numbers = sorted({len(each) for each in values})
        seeds = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        means = [each.mean() for each in values]
        cells = [f"{mean:+.1f}" for mean in means]
        rows.append([row.method, seeds, *cells, mean_interval(values), difference, f"{min(means):+.1f}"])
    return ["loss, tau", "seeds", *collections, "mean", "minus standard", "worst"], rows
