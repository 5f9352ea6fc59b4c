"""Scores encoders for the cells of a table: Spearman's correlation, accuracy or nDCG x 100, alignment, uniformity."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import InputError, unknown
from ..evaluation.base import Pairs, counted, read_pairs
from ..evaluation.sts import DEV, SEVEN, PairScore, Task, score_pairs

if TYPE_CHECKING:
    from ..evaluation.base import Encodes, Evaluation

ANY = "*"
"""Column name for suites with a single score."""
TASKS = {**SEVEN, **DEV}
"""Title and number of pairs of each file of scored pairs, keyed by the stem of the file name."""
SUITES: dict[str, tuple[str, ...]] = {
    "sts": tuple(SEVEN),
    "sts average": tuple(SEVEN),
    "stsb-dev": ("stsb.dev",),
    "stsb-test": ("stsb.test",),
    "stsb-test, sickr-test": ("stsb.test", "sickr.test"),
    "stsb-dev, sts average": ("stsb.dev", *SEVEN),
    "geometry, stsb-test": ("stsb.test",),
    "transfer": (),
    "columns": (),
}
"""The files of scored pairs that each suite reads, as stems of their names.

The columns of a table with the suite ``columns`` are named after the STS tasks and retrieval collections to read.
"""
TRANSFER = "mr.tsv"
"""A file of the transfer tasks; the folder that contains this file is the folder of the tasks."""


def find(data: Path, name: str) -> Path:
    """Returns the path of a file or folder in ``data`` or in a subfolder; raises ``InputError`` if there is none."""
    for path in (data / name, *sorted(data.glob(f"*/{name}"))):
        if path.exists():
            return path
    raise InputError(f"--data {data}: has no {name}, neither directly nor in a subfolder; the table needs it")


class Scorer:
    """Scores encoders on the evaluation data of a table, which the constructor reads and checks.

    Args:
        suite: One of ``SUITES``.
        columns: Names of the table's columns; for the suite ``columns``, titles of STS tasks or names of collections.
        data: Folder of the data.
        partial: Whether to accept files with fewer rows than the tasks have, and to evaluate transfer tasks with two
            folds instead of ten; for trials.

    Raises:
        InputError: If data are missing, invalid, or incomplete.
    """

    def __init__(self, suite: str, columns: Sequence[str], data: Path, partial: bool = False) -> None:
        if suite not in SUITES:
            raise ValueError(unknown("suite", suite, SUITES))
        self.suite, self.columns = suite, tuple(columns)
        stems = {title: stem for stem, (title, _) in TASKS.items()}
        own = [column for column in columns if suite == "columns"]
        needed = [*SUITES[suite], *(stems[column] for column in own if column in stems)]
        self.paths = {stem: find(data, f"{stem}.tsv") for stem in needed}
        self.pairs = {stem: _read(stem, path, partial) for stem, path in self.paths.items()}
        self.suites: dict[str, Evaluation] = {}
        folders = {column: ("retrieval", find(data, column)) for column in own if column not in stems}
        if suite == "transfer":
            folders["transfer"] = ("transfer", find(data, TRANSFER).parent)
        for name, (kind, folder) in folders.items():
            self.paths[name] = folder
            self.suites[name] = _open(kind, folder, partial)

    @cached_property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the names and contents of all files."""
        found = hashlib.sha256()
        for name, path in sorted(self.paths.items()):
            files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
            for file in files:
                found.update(f"{name}/{file.name} {hash_file(str(file))}\n".encode())
        return found.hexdigest()[:16]

    def __call__(self, encoder: Encodes, progress: Callable[[int, int], None] | None = None) -> dict[str, float]:
        """Scores an encoder.

        Args:
            encoder: The encoder.
            progress: Called with the units of work done and their total; a unit is usually one encoded text.

        Returns:
            Scores x 100 by column, or by ``ANY`` if the suite has only one score. Alignment and uniformity are not
            scaled.
        """
        total = sum(len({*pairs.left, *pairs.right}) for pairs in self.pairs.values())
        total += sum(suite.work() for suite in self.suites.values())
        advance = counted(total, progress)
        pairs = {stem: score_pairs(encoder, each, advance) for stem, each in self.pairs.items()}
        rows = {name: suite(encoder, advance).rows for name, suite in self.suites.items()}
        if self.suite == "transfer":
            accuracies = {row["task"]: float(row["accuracy"]) for row in rows["transfer"]}
            return {**accuracies, "Avg.": float(np.mean(list(accuracies.values())))}
        if self.suite == "geometry, stsb-test":
            return _geometry(pairs["stsb.test"])
        scores = {TASKS[stem][0]: score.spearman for stem, score in pairs.items()}
        if set(SEVEN) <= pairs.keys():
            scores["Avg."] = float(np.mean([scores[title] for title, _ in SEVEN.values()]))
        if self.suite == "sts average":
            return {ANY: scores["Avg."]}
        if self.suite == "stsb-dev, sts average":
            return {"STS-B dev": scores["STS-B dev"], "STS Avg.": scores["Avg."]}
        if self.suite in ("stsb-dev", "stsb-test"):
            return {ANY: scores[TASKS[SUITES[self.suite][0]][0]]}
        if self.suite == "stsb-test, sickr-test":  # columns are named "model, task"
            return {column: score for column in self.columns for task, score in scores.items() if column.endswith(task)}
        return {**scores, **{name: float(row["ndcg@10"]) for name, (row,) in rows.items()}}


def _read(stem: str, path: Path, partial: bool) -> Pairs:
    title, expected = TASKS[stem]
    pairs = read_pairs(path)
    if not partial and not Task(stem, title, expected, path).is_complete(pairs):
        raise InputError(
            f"{path}: {len(pairs.gold):,} pairs, but {title} has {expected:,}; scores would not be comparable; get the "
            "whole file"
        )
    return pairs


def _open(kind: str, folder: Path, partial: bool) -> Evaluation:
    from ..evaluation.suites import open_suites
    from ..evaluation.transfer import TASKS as TRANSFER_TASKS

    if kind == "retrieval":
        return open_suites(kind, folder)[kind]
    for stem, task in TRANSFER_TASKS.items():  # a task without files would be left out of the mean
        for split in task.rows:
            find(folder, f"{stem}.tsv" if split == "all" else f"{stem}.{split}.tsv")
    return open_suites(kind, folder, {"transfer": {"folds": 2}} if partial else None, partial)[kind]


def _geometry(score: PairScore) -> dict[str, float]:
    return {"ALGN": score.alignment, "UNIF": score.uniformity, "SpCorr": score.spearman}


@cache
def hash_file(path: str) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of a file, or ``path`` itself if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return path
