"""How an encoder is scored for the cells of a table: Spearman's correlations, accuracies and nDCG, each x 100."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, unknown

if TYPE_CHECKING:
    from ..models.inference import Encoder

__all__ = ["ANY", "check_data", "score_columns"]

ANY = "*"
"""Column of suites with one score."""
# Files and folders of the data that a suite reads.
SEVEN = tuple(f"{name}.test.tsv" for name in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"))
TITLES = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
TRANSFER = ("mr.tsv", "cr.tsv", "subj.tsv", "mpqa.tsv", "sst2.test.tsv", "trec.test.tsv", "mrpc.test.tsv")
# Columns of tables of our own, by their names: files of scored pairs; every other column is a retrieval collection.
PAIRS = {"STS-B dev": "stsb.dev.tsv", "SICK-R dev": "sickr.dev.tsv", "STS16": "sts16.test.tsv"}
NEEDS: dict[str, tuple[str, ...]] = {
    "sts": SEVEN,
    "sts average": SEVEN,
    "stsb-dev": ("stsb.dev.tsv",),
    "stsb-test": ("stsb.test.tsv",),
    "stsb-test, sickr-test": ("stsb.test.tsv", "sickr.test.tsv"),
    "stsb-dev, sts average": ("stsb.dev.tsv", *SEVEN),
    "geometry, stsb-test": ("stsb.test.tsv",),
    "transfer": TRANSFER,
}


def files_of(suite: str, columns: Sequence[str]) -> tuple[str, ...]:
    """Returns the files and folders that a suite reads, relative to ``--data``."""
    if suite == "columns":
        return tuple(PAIRS.get(column, column) for column in columns)
    if suite not in NEEDS:
        raise ValueError(unknown("suite", suite, NEEDS))
    return NEEDS[suite]


def find(data: Path, name: str) -> Path:
    """Returns a file or folder of the data, in ``data`` or in a folder of it; raises ``InputError`` without it."""
    for path in (data / name, *sorted(data.glob(f"*/{name}"))):
        if path.exists():
            return path
    raise InputError(f"--data {data}: has no {name}, neither itself nor in a folder of it; the table is scored on it")


def check_data(suite: str, columns: Sequence[str], data: Path) -> None:
    """Raises ``InputError`` if a file or folder that the suite reads is missing."""
    for name in files_of(suite, columns):
        find(data, name)


def score_columns(
    encoder: Encoder, suite: str, columns: Sequence[str], data: Path, partial: bool = False
) -> dict[str, float]:
    """Scores an encoder.

    Args:
        encoder: The encoder.
        suite: Name of a suite, see ``NEEDS``, or ``columns``.
        columns: Names of the columns of the table; for ``columns``, the tasks.
        data: Folder of the data.
        partial: Accept files with fewer rows than the tasks have, and use two folds instead of ten.

    Returns:
        Scores x 100 by column; ``ANY`` where the suite has one score. Alignment and uniformity are not scaled.
    """
    if suite == "sts":
        scores = dict(zip(TITLES, (_spearman(encoder, find(data, name)) for name in SEVEN), strict=True))
        return {**scores, "Avg.": float(np.mean(list(scores.values())))}
    if suite == "sts average":
        return {ANY: score_columns(encoder, "sts", (), data)["Avg."]}
    if suite in ("stsb-dev", "stsb-test"):
        return {ANY: _spearman(encoder, find(data, NEEDS[suite][0]))}
    if suite == "stsb-test, sickr-test":
        both = {"STS-B": "stsb.test.tsv", "SICK-R": "sickr.test.tsv"}
        return {
            column: _spearman(encoder, find(data, path))
            for column in columns
            for task, path in both.items()
            if column.endswith(task)
        }
    if suite == "stsb-dev, sts average":
        average = score_columns(encoder, "sts", (), data)["Avg."]
        return {"STS-B dev": _spearman(encoder, find(data, "stsb.dev.tsv")), "STS Avg.": average}
    if suite == "geometry, stsb-test":
        return _geometry(encoder, find(data, "stsb.test.tsv"))
    if suite == "transfer":
        return _transfer(encoder, find(data, "mr.tsv").parent, partial)
    return {column: _column(encoder, column, data) for column in columns}


def _spearman(encoder: Encoder, path: Path) -> float:
    from ..evaluation.sts import read_pairs, score_pairs

    return score_pairs(encoder, read_pairs(path)).spearman


def _geometry(encoder: Encoder, path: Path) -> dict[str, float]:
    from ..evaluation.sts import read_pairs, score_pairs

    score = score_pairs(encoder, read_pairs(path))
    return {"ALGN": score.alignment, "UNIF": score.uniformity, "SpCorr": score.spearman}


def _transfer(encoder: Encoder, data: Path, partial: bool) -> dict[str, float]:
    from ..evaluation.run import evaluate

    options = {"transfer": {"folds": 2}} if partial else None
    report = evaluate(encoder, "transfer", data, options=options, allow_partial=partial).reports["transfer"]
    scores = {row["task"]: float(row["accuracy"]) for row in report.rows}
    return {**scores, "Avg.": float(np.mean(list(scores.values())))}


def _column(encoder: Encoder, column: str, data: Path) -> float:
    from ..evaluation.run import evaluate

    if column in PAIRS:
        return _spearman(encoder, find(data, PAIRS[column]))
    (row,) = evaluate(encoder, "retrieval", find(data, column)).reports["retrieval"].rows
    return float(row["ndcg@10"])
