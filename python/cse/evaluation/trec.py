"""TREC run files: the ranked documents of queries, one per line: query, Q0, document, rank, score, name of the system.

Programs such as trec_eval ignore the ranks, compare scores in float32 and order equal scores by descending document id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..data.pairs import number_of
from ..errors import InputError, shown
from ..io import write_text
from .base import read_lines

Ranking = Mapping[str, float]
"""The scores of ranked documents by id, best first."""


def strict(ranking: Ranking) -> dict[str, float]:
    """Returns a ranking with scores that differ in float32, so that every program keeps its order."""
    before, scores = np.float32(np.inf), {}
    for document, score in ranking.items():
        before = min(np.float32(score), np.nextafter(before, np.float32(-np.inf)))
        scores[document] = float(before)
    return scores


def write_run(path: str | Path, rankings: Mapping[str, Ranking], name: str = "cse") -> None:
    """Writes rankings by query to a run file; raises ``InputError`` if an id holds white space."""
    for key in (key for query, ranking in rankings.items() for key in (query, *ranking)):
        if re.search(r"\s", key) or not key:
            raise InputError(f"--run {path}: the id {shown(key)} holds white space or is empty; change it")
    lines = [
        f"{query} Q0 {document} {rank} {np.float32(score)} {name}\n"
        for query, ranking in rankings.items()
        for rank, (document, score) in enumerate(strict(ranking).items(), 1)
    ]
    write_text(path, "".join(lines))


def read_run(path: str | Path) -> dict[str, dict[str, float]]:
    """Reads the rankings of a run file by query, by descending scores (in float32), then descending ids."""
    rankings: dict[str, dict[str, float]] = {}
    for number, line in read_lines(Path(path)):
        fields = line.split()
        if len(fields) != 6 or number_of(fields[4]) is None:
            raise InputError(
                f"{path}: line {number} must have six fields (query, Q0, document, rank, score, name of the system), "
                "separated by white space"
            )
        ranking = rankings.setdefault(fields[0], {})
        if fields[2] in ranking:
            raise InputError(f"{path}: line {number} repeats the document {shown(fields[2])} of query {fields[0]}")
        ranking[fields[2]] = float(fields[4])
    if not rankings:
        raise InputError(f"{path}: the file is empty")
    return {
        query: dict(sorted(ranking.items(), key=lambda item: (np.float32(item[1]), item[0]), reverse=True))
        for query, ranking in rankings.items()
    }
