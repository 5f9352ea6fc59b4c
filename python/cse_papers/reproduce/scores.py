"""Scores of encoders for the cells of a table, and the evaluation data that they need.

A score is Spearman's correlation, accuracy or nDCG, times 100, or alignment or uniformity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cse.errors import InputError
from cse.evaluation.base import Pairs, counted, embed, read_pairs
from cse.evaluation.sts import DEV, SEVEN, PairScore, clean_development, pair_cosines, score_vectors

from .intervals import resampled

if TYPE_CHECKING:
    from cse.evaluation.base import Encodes, Evaluation

Key = tuple[str, str | None, int | None]
"""Row, column and seed of a stored record of scores."""
Records = dict[Key, dict[str, Any]]
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
    "effects": (*SEVEN, "stsb.dev"),
    "domain": (),
}
"""The files of scored pairs that each suite reads, as stems of their names.

The columns of a table with the suite ``columns`` are named after the STS tasks and retrieval collections to read, and
those with the suite ``domain`` after collections. ``effects`` also has the clean development sets.
"""
TRANSFER = "mr.tsv"
"""A file of the transfer tasks; the folder that contains this file is the folder of the tasks."""


def find(data: Path, name: str) -> Path:
    """Returns the path of a file or folder in ``data`` or in a subfolder; raises ``InputError`` if there is none."""
    for path in (data / name, *sorted(data.glob(f"*/{name}"))):
        if path.exists():
            return path
    raise InputError(f"--data {data} has no {name}, neither directly nor in a subfolder; the table needs it")


def clean_sets(data: Path) -> dict[str, Pairs]:
    """Returns the sets of ``clean_development``, whose files may be in a subfolder of ``data``."""
    return clean_development(find(data, f"{next(iter(SEVEN))}.tsv").parent)


class Scorer:
    """Scores encoders on the evaluation data of a table, which the constructor reads and checks.

    With ``partial``, for trials, files may have fewer rows than the tasks have, and transfer tasks are evaluated with
    two folds instead of ten. ``also`` names collections to score in addition, or ``transfer``. Raises ``InputError``
    for data that are missing, invalid, or incomplete.
    """

    def __init__(
        self, suite: str, columns: Sequence[str], data: Path, partial: bool = False, also: Sequence[str] = ()
    ) -> None:
        self.suite, self.columns, self.partial = suite, tuple(columns), partial
        stems = {title: stem for stem, (title, _) in TASKS.items()}
        own = [*(column for column in columns if suite in ("columns", "domain")), *also]
        needed = [*SUITES[suite], *(stems[column] for column in own if column in stems)]
        self.paths = {stem: find(data, f"{stem}.tsv") for stem in needed}
        self.pairs = {stem: _read(stem, path, partial) for stem, path in self.paths.items()}
        self.clean = clean_sets(data) if suite == "effects" else {}
        self.suites: dict[str, Evaluation] = {}
        folders = {name: ("retrieval", find(data, name)) for name in own if name not in stems and name != "transfer"}
        if suite == "transfer" or "transfer" in also:
            folders["transfer"] = ("transfer", find(data, TRANSFER).parent)
        for name, (kind, folder) in folders.items():
            self.paths[name] = folder
            self.suites[name] = _open(kind, folder, partial)

    def hash(self, column: str | None = None) -> str:
        """Returns the first 16 hexadecimal digits of the SHA-256 of the names and contents of all files."""
        digest = hashlib.sha256()
        for name, path in sorted(self.paths.items()):
            if self.suite == "domain" and column not in (None, name):
                continue
            files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
            for file in files:
                digest.update(f"{name}/{file.name} {hash_file(str(file))}\n".encode())
        return digest.hexdigest()[:16]

    def measure(
        self, encoder: Encodes, progress: Callable[[int, int], None] | None = None, column: str | None = None
    ) -> tuple[dict[str, float], dict[str, list[int | None]]]:
        """Scores an encoder: all columns or, with the suite ``domain``, only ``column``.

        ``progress`` is called with the units of work done, usually encoded texts, and their total. Returns scores x 100
        by column, or by ``ANY`` if the suite has only one score; alignment and uniformity are not scaled. And, for
        intervals, scores in hundredths of a point: those of resamples (suite ``effects``), or of all queries (suite
        ``domain``).
        """
        wanted = self.suites if self.suite != "domain" or column is None else {column: self.suites[column]}
        sets = {**self.pairs, **self.clean}
        total = len({text for pairs in sets.values() for side in (pairs.left, pairs.right) for text in side})
        total += sum(suite.work() for suite in wanted.values())
        advance = counted(total, progress)
        encoded = iter(embed(encoder, [side for each in sets.values() for side in (each.left, each.right)], advance))
        vectors = {stem: (next(encoded), next(encoded)) for stem in sets}
        pairs = {stem: score_vectors(sets[stem], *both) for stem, both in vectors.items()}
        reports = {name: suite(encoder, advance) for name, suite in wanted.items()}
        scores = self._scores(pairs, {name: report.rows for name, report in reports.items()})
        if self.suite == "domain":
            per_query = [each for report in reports.values() for each in report.samples[0].values]
            return scores, {"ndcg": [round(100 * value) for value in per_query]}
        if self.suite != "effects":
            return scores, {}
        resampled_pairs = {TASKS[stem][0]: content for stem, content in self.pairs.items()}
        cosines = {TASKS[stem][0]: pair_cosines(*vectors[stem]) for stem in self.pairs}
        return scores, resampled(resampled_pairs, cosines, *((10,) if self.partial else ()))

    def _scores(self, pairs: dict[str, PairScore], rows: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
        accuracies = {row["task"]: float(row["accuracy"]) for row in rows.pop("transfer", ())}
        if self.suite == "transfer":
            return {**accuracies, "Avg.": float(np.mean(list(accuracies.values())))}
        if self.suite == "geometry, stsb-test":
            score = pairs["stsb.test"]
            return {"ALGN": score.alignment, "UNIF": score.uniformity, "SpCorr": score.spearman}
        scores = {TASKS[stem][0] if stem in TASKS else stem: score.spearman for stem, score in pairs.items()}
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
        scores |= {name: float(row["ndcg@10"]) for name, (row,) in rows.items()}
        if self.suite == "effects":
            scores |= {"mean": scores.pop("Avg."), "alignment": pairs["stsb.dev"].alignment}
            scores["uniformity"] = pairs["stsb.dev"].uniformity
            if accuracies:
                scores["transfer"] = float(np.mean(list(accuracies.values())))
        return scores


def _read(stem: str, path: Path, partial: bool) -> Pairs:
    pairs, (title, expected) = read_pairs(path), TASKS[stem]
    if not partial and len(pairs.gold) != expected:
        raise InputError(
            f"{path}: {len(pairs.gold):,} pairs, but {title} has {expected:,}; scores would not be comparable; get the "
            "whole file"
        )
    return pairs


def _open(kind: str, folder: Path, partial: bool) -> Evaluation:
    from cse.evaluation.run import open_suites

    from ..transfer import TASKS as TRANSFER_TASKS

    if kind == "retrieval":
        return open_suites(kind, folder)[kind]
    for stem, task in TRANSFER_TASKS.items():  # a task without files would be left out of the mean
        for split in task.rows:
            find(folder, f"{stem}.tsv" if split == "all" else f"{stem}.{split}.tsv")
    return open_suites(kind, folder, {"transfer": {"folds": 2}} if partial else None, partial)[kind]


@cache
def hash_file(path: str) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of a file, or ``path`` itself if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError:
        return path
