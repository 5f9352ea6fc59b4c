"""Semantic textual similarity with the "all" setting of SimCSE.

All subsets of a task are concatenated; the score is Spearman's correlation x 100 between cosines and gold scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .base import Encodes, Evaluation, Report
from .geometry import alignment, uniformity, unit

__all__ = ["SEVEN", "STS", "PairScore", "Pairs", "STSOptions", "Task", "load_tasks", "read_pairs", "score_pairs"]

# Title and number of pairs of each complete task, as in SentEval.
SEVEN = {
    "sts12.test": ("STS12", 3108),
    "sts13.test": ("STS13", 1500),
    "sts14.test": ("STS14", 3750),
    "sts15.test": ("STS15", 3000),
    "sts16.test": ("STS16", 1186),
    "stsb.test": ("STS-B", 1379),
    "sickr.test": ("SICK-R", 4927),
}
DEV = {"stsb.dev": ("STS-B dev", 1500), "sickr.dev": ("SICK-R dev", 500)}


@dataclass(frozen=True)
class Pairs:
    """Scored sentence pairs: gold scores ``(n,)`` float64, and two lists of n sentences."""

    gold: npt.NDArray[np.float64]
    left: list[str]
    right: list[str]


@dataclass(frozen=True)
class Task:
    """The file of a task, and the number of pairs of the complete task (``expected``)."""

    key: str
    title: str
    expected: int
    path: Path


@dataclass(frozen=True)
class PairScore:
    """Spearman's correlation x 100, number of pairs, alignment of the pairs with a score above 4, and uniformity."""

    spearman: float
    pairs: int
    alignment: float
    uniformity: float

    def to_dict(self) -> dict[str, float]:
        """Returns the scores without the number of pairs, for logs."""
        return {
            "spearman": self.spearman,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
        }


def find_tasks(folder: str | Path) -> list[Task]:
    """Finds the STS files ``KEY.tsv`` in a folder, for the keys of ``SEVEN`` and ``DEV``, in this order.

    Raises ``InputError`` if the folder does not exist or has none of the files.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"--data {folder}: no such folder")
    known = {**SEVEN, **DEV}
    found = [
        Task(key, title, count, folder / f"{key}.tsv")
        for key, (title, count) in known.items()
        if (folder / f"{key}.tsv").is_file()
    ]
    if not found:
        raise InputError(f"--data {folder}: none of {', '.join(f'{key}.tsv' for key in known)} is there")
    return found


def load_tasks(folder: str | Path, allow_partial: bool = False) -> list[tuple[Task, Pairs]]:
    """Returns the tasks found in a folder with their pairs.

    Raises ``InputError`` for an invalid file, and for an incomplete one unless ``allow_partial`` is True.
    """
    found = [(task, read_pairs(task.path)) for task in find_tasks(folder)]
    for task, pairs in found:
        if len(pairs.gold) != task.expected and not allow_partial:
            raise InputError(
                f"{task.path}: {len(pairs.gold):,} pairs, and {task.title} has {task.expected:,}; get the whole "
                "file, or pass --allow-partial to score it without an average"
            )
    return found


def average_of_seven(scores: dict[str, float], loaded: list[tuple[Task, Pairs]]) -> float | None:
    """Returns the mean over the seven test sets, as in the papers; None if one of them is missing or incomplete."""
    whole = {task.key for task, pairs in loaded if len(pairs.gold) == task.expected}
    if not set(SEVEN) <= whole:
        return None
    return sum(scores[key] for key in SEVEN) / len(SEVEN)


def read_pairs(path: str | Path) -> Pairs:
    """Reads a TSV file of score, sentence1, sentence2.

    Further columns are ignored, quotes are ordinary characters, blank lines are skipped. Raises ``InputError`` for
    invalid UTF-8, an invalid line, or fewer than two different scores.
    """
    path = Path(path)
    gold, left, right = [], [], []
    try:
        lines = path.read_bytes().decode("utf8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 (byte offset {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = line.rstrip("\r").split("\t")
        try:
            score = float(fields[0].lstrip("\ufeff"))
            if not math.isfinite(score) or len(fields) < 3:
                raise ValueError
        except ValueError:
            raise InputError(f"{path}: line {number} is not 'score, sentence1, sentence2' separated by tabs") from None
        gold.append(score)
        left.append(fields[1])
        right.append(fields[2])
    if len(gold) < 2 or len(set(gold)) < 2:
        raise InputError(f"{path}: at least two pairs with different scores are needed for a correlation")
    return Pairs(np.array(gold), left, right)


def score_pairs(model: Encodes, pairs: Pairs, progress: Callable[[int], None] | None = None) -> PairScore:
    """Scores an encoder on sentence pairs; each distinct sentence is encoded once.

    The correlation is NaN if all cosines are equal, alignment is NaN if no pair has a score above 4.
    """
    from scipy.stats import spearmanr

    sentences = list(dict.fromkeys([*pairs.left, *pairs.right]))
    row = {sentence: i for i, sentence in enumerate(sentences)}
    vectors = unit(model.encode(sentences, progress=progress))
    left = vectors[[row[sentence] for sentence in pairs.left]]
    right = vectors[[row[sentence] for sentence in pairs.right]]
    cosines = (left * right).sum(1)
    constant = float(np.ptp(cosines)) < 1e-9
    correlation = math.nan if constant else float(spearmanr(cosines, pairs.gold).statistic) * 100
    close = pairs.gold > 4
    return PairScore(
        spearman=correlation,
        pairs=len(cosines),
        alignment=alignment(left[close], right[close]) if close.any() else math.nan,
        uniformity=uniformity(vectors),
    )


@dataclass(frozen=True)
class STSOptions:
    """Options of the STS evaluation."""

    allow_partial: bool = False


class STS(Evaluation):
    """STS tasks in a folder; see ``find_tasks`` for the file names."""

    Options = STSOptions
    summary = "Spearman's correlation on the STS tasks in --data DIR (sts12.test.tsv, ..., sickr.test.tsv)"

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        if data is None:
            raise InputError("--data: name the folder of the STS files (sts12.test.tsv, ..., sickr.test.tsv)")
        self.tasks = load_tasks(data, options.allow_partial)

    def sentences(self) -> int:
        """Returns the number of distinct sentences, summed over tasks."""
        return sum(len({*pairs.left, *pairs.right}) for _, pairs in self.tasks)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        """Returns one row per task; the summary is the mean of the seven test sets if all are complete."""
        scored = [(task, score_pairs(encoder, pairs, progress)) for task, pairs in self.tasks]
        rows = [
            {"task": task.title, "key": task.key, "pairs": score.pairs, "expected": task.expected, **score.to_dict()}
            for task, score in scored
        ]
        average = average_of_seven({task.key: score.spearman for task, score in scored}, self.tasks)
        notes = [
            f"{task.title}: {score.pairs:,} pairs, and the whole task has {task.expected:,}: not comparable"
            for task, score in scored
            if score.pairs != task.expected
        ]
        return Report(rows, {"average_of_seven": average}, notes)
