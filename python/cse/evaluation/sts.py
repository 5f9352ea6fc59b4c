"""Semantic textual similarity with the "all" setting of SimCSE, and published averages over the seven test sets.

All subsets of a task are concatenated; the score is Spearman's correlation x 100 between cosines and gold scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..ties import comparable
from .base import (
    Encodes,
    Evaluation,
    Mask,
    Pairs,
    Progress,
    Report,
    Sample,
    Seen,
    check_apart,
    embed,
    find_file,
    find_files,
    needed,
    read_pairs,
)
from .geometry import alignment, uniformity, unit
from .options import STSOptions

# Title and number of pairs of each complete task, keyed by the stem of its file name. The numbers are SentEval's.
SEVEN = {
    "sts12.test": ("STS12", 3108),
    "sts13.test": ("STS13", 1500),
    "sts14.test": ("STS14", 3750),
    "sts15.test": ("STS15", 3000),
    "sts16.test": ("STS16", 1186),
    "stsb.test": ("STS-B", 1379),
    "sickr.test": ("SICK-R", 4927),
}
NOT_SCORED = "Spearman's correlation could not be computed, because all cosines are equal"
DEV = {"stsb.dev": ("STS-B dev", 1500), "sickr.dev": ("SICK-R dev", 500)}


@dataclass(frozen=True)
class Task:
    """An STS task; ``expected`` is the number of pairs of the complete task, None if any number is complete."""

    key: str
    title: str
    expected: int | None
    path: Path

    def is_complete(self, pairs: Pairs) -> bool:
        return self.expected in (None, len(pairs.gold))


@dataclass(frozen=True)
class PairScore:
    """Spearman's correlation x 100, number of pairs, alignment of pairs with gold scores above 4, and uniformity."""

    spearman: float
    pairs: int
    alignment: float
    uniformity: float

    def to_dict(self) -> dict[str, float]:
        return {"spearman": self.spearman, "alignment": self.alignment, "uniformity": self.uniformity}


def find_tasks(folder: str | Path) -> list[Task]:
    """Finds ``KEY.tsv`` for each key of ``SEVEN`` and ``DEV`` in a folder; a file is a task of its own."""
    folder = Path(folder)
    if folder.is_file():
        return [Task(folder.name, folder.name, None, folder)]
    if not folder.is_dir():
        raise InputError(f"--data {folder}: no such file or folder")
    known = {**SEVEN, **DEV}
    tasks = [Task(key, *known[key], path) for key in known for path in find_files(folder, [f"{key}.tsv"])]
    if not tasks:
        other = "; for its corpus.jsonl, add --suite retrieval" if find_files(folder, ["corpus.jsonl"]) else ""
        raise InputError(f"--data {folder} has none of {', '.join(f'{key}.tsv' for key in known)}{other}")
    return tasks


def load_tasks(folder: str | Path, allow_partial: bool = False) -> list[tuple[Task, Pairs]]:
    tasks = [(task, read_pairs(task.path)) for task in find_tasks(folder)]
    for task, pairs in tasks:
        if not task.is_complete(pairs) and not allow_partial:
            raise InputError(
                f"{task.path}: {len(pairs.gold):,} pairs, but {task.title} has {task.expected:,}; get the whole "
                "file, or pass --allow-partial to score it without an average"
            )
    return tasks


def in_memory(sets: Mapping[str, Pairs]) -> list[tuple[Task, Pairs]]:
    """Returns sets of pairs as tasks, by title."""
    return [(Task(title, title, None, Path(title)), pairs) for title, pairs in sets.items()]


CLEAN = "clean"
"""Value of ``--dev`` that stands for ``clean_development``."""
CLEAN_FILES = {"STS-B dev, clean": ("stsb.dev",), "SICK-R train and dev, clean": ("sickr.train", "sickr.dev")}


def pair_key(left: str, right: str) -> tuple[str, ...]:
    """Returns what two pairs of sentences share if they are the same: letters and digits, in either order."""
    return tuple(sorted("".join(filter(str.isalnum, text.lower())) for text in (left, right)))


def clean_development(folder: str | Path) -> dict[str, Pairs]:
    """Returns development sets that have no pair of the seven test sets, by title; see ``pair_key``. 1,135 of the 1,496
    distinct pairs of STS-B dev are pairs of a test set. Of equal pairs, the first is kept."""

    def rows_of(keys: Iterable[str]) -> Iterator[tuple[float, str, str]]:
        for pairs in (read_pairs(find_file(Path(folder), [f"{key}.tsv"])) for key in keys):
            yield from zip(pairs.gold, pairs.left, pairs.right, strict=True)

    tested = {pair_key(left, right) for _, left, right in rows_of(SEVEN)}
    clean = {}
    for title, keys in CLEAN_FILES.items():
        first = {pair_key(*row[1:]): row for row in reversed([*rows_of(keys)])}
        kept = [row for key, row in reversed(first.items()) if key not in tested]
        gold, left, right = zip(*kept, strict=True)
        clean[title] = Pairs(np.array(gold, dtype=np.float64), list(left), list(right))
    return clean


def read_dev(names: Sequence[str], data: str | None) -> dict[str, Pairs]:
    """Returns development sets by name: files of scored pairs, and for ``clean`` the sets of the folder ``data``."""
    sets: dict[str, Pairs] = {}
    for name in names:
        if name != CLEAN or Path(name).exists():
            sets[name] = read_pairs(name)
        elif data is None:
            raise InputError("--dev clean is made from the STS files of --data; add --data DIR")
        else:
            sets |= clean_development(data)
    return sets


def score_pairs(model: Encodes, pairs: Pairs, progress: Progress | None = None) -> PairScore:
    """Scores an encoder on sentence pairs; see ``score_vectors``."""
    return score_vectors(pairs, *embed(model, [pairs.left, pairs.right], progress))


def score_vectors(pairs: Pairs, left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> PairScore:
    """Scores the embeddings of sentence pairs, ``(n, D)`` for each side; the uniformity is over distinct sentences.
    The correlation is NaN if all cosines are equal; alignment is NaN if no pair has a gold score above 4."""
    from scipy.stats import spearmanr

    cosines = pair_cosines(left, right)
    constant = float(np.ptp(cosines)) == 0
    correlation = math.nan if constant else float(spearmanr(cosines, pairs.gold).statistic) * 100
    close = pairs.gold > 4
    row = {sentence: i for i, sentence in enumerate([*pairs.left, *pairs.right])}
    distinct = np.concatenate([left, right])[list(row.values())]
    aligned = alignment(left[close], right[close]) if close.any() else math.nan
    return PairScore(correlation, len(cosines), aligned, uniformity(distinct))


def pair_cosines(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Returns the cosines of corresponding rows of two matrices ``(n, D)``, those that are the same as equal numbers:
    ``(n,)`` float64."""
    return comparable((unit(left) * unit(right)).sum(1))


def hard_pairs(sample: Sample, count: int) -> list[dict[str, Any]]:
    """Returns the pairs of a task that an encoder finds much more similar than people do, the hardest first."""
    from scipy.stats import rankdata

    if sample.gold is None or sample.sentences is None:
        return []
    excess = rankdata(sample.values) - rankdata(sample.gold)
    order = [row for row in np.argsort(-excess, kind="stable")[:count].tolist() if excess[row] > 0]
    names = ("task", "score", "cosine", "sentence1", "sentence2")
    columns = (sample.gold.tolist(), sample.values.tolist(), *sample.sentences)
    return [dict(zip(names, (sample.task, *(each[row] for each in columns)), strict=True)) for row in order]


class STS(Evaluation):
    """STS tasks in a folder (see ``find_tasks`` for the file names), a file of scored pairs, or ``Pairs`` by title."""

    Options = STSOptions
    paper_row = ("spearman", "average_of_seven")
    summary = (
        "Spearman's correlation on the STS tasks in --data DIR (sts12.test.tsv, ..., sickr.test.tsv), or on FILE.tsv"
    )

    def __init__(self, options: STSOptions, data: str | dict[str, Pairs] | None) -> None:
        super().__init__(options, data)
        if isinstance(data, dict):
            self.tasks = in_memory(data)
        else:
            self.tasks = self.load(needed(data, "the folder of the STS files (sts12.test.tsv, ..., sickr.test.tsv)"))

    def load(self, data: str) -> list[tuple[Task, Pairs]]:
        return load_tasks(data, self.options.allow_partial)

    def known(self, seen: Seen) -> Mask:
        return np.concatenate([seen(pairs.left) | seen(pairs.right) for _, pairs in self.tasks])

    def only(self, kept: Mask) -> STS | None:
        """Returns the evaluation of some pairs, without sets of which all scores are then equal."""
        parts = np.split(kept, np.cumsum([len(pairs.gold) for _, pairs in self.tasks])[:-1])
        rest = []
        for (task, pairs), own in zip(self.tasks, parts, strict=True):
            columns = (list(compress(each, own)) for each in (pairs.left, pairs.right))
            rest.append((task, Pairs(pairs.gold[own], *columns)))
        evaluation = copy(self)
        evaluation.tasks = [(task, pairs) for task, pairs in rest if len(set(pairs.gold)) > 1]
        return evaluation if evaluation.tasks else None

    def columns(self) -> list[list[str]]:
        return [column for _, pairs in self.tasks for column in (pairs.left, pairs.right)]

    def work(self) -> int:
        return len({text for column in self.columns() for text in column})

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        """Returns a report with one row per task; if the seven test sets are complete, the summary holds their mean."""
        columns = embed(encoder, self.columns(), progress)
        check_apart(np.concatenate(columns))
        vectors = iter(columns)
        rows, notes, samples = [], [], []
        scores: dict[str, float] = {}  # of complete tasks
        for task, pairs in self.tasks:
            left, right = next(vectors), next(vectors)
            score = score_vectors(pairs, left, right)
            row = {"task": task.title, "key": task.key, "pairs": score.pairs, "expected": task.expected}
            rows.append({**row, **score.to_dict()})
            about = (pairs.gold, (pairs.left, pairs.right), "pairs", f"Spearman's correlation on {task.title}")
            samples.append(Sample(task.title, pair_cosines(left, right), *about))
            if math.isnan(score.spearman):
                notes.append(f"{task.title}: {NOT_SCORED}")
            if task.is_complete(pairs):
                scores[task.key] = score.spearman
            else:
                notes.append(
                    f"{task.title}: {score.pairs:,} pairs, but the whole task has {task.expected:,}; not comparable"
                )
        whole = set(SEVEN) <= scores.keys()
        average = sum(scores[key] for key in SEVEN) / len(SEVEN) if whole else None
        return Report(rows, {"average_of_seven": average}, notes, samples)


class CleanDevelopment(STS):
    """The development sets of ``clean_development``."""

    paper_row = ("", "")
    summary = "Spearman's correlation on STS-B dev and SICK-R train and dev without pairs of a test set, in --data DIR"

    def load(self, data: str) -> list[tuple[Task, Pairs]]:
        return in_memory(clean_development(data))


PUBLISHED = [
    ("SimCSE-BERT-base", "76.25", "74.83, 75.32, 75.68"),
    ("SimCSE-BERT-base + Focal-InfoNCE", "77.33 ± 0.08", ""),
    ("MixCSE-BERT-base", "77.66", ""),
    ("UNA-BERT-base", "76.14", ""),
    ("UNA-BERT-base + paraphrases", "77.67", ""),
    ("SimCSE-RoBERTa-base", "76.57", "76.07, 76.49"),
    ("SimCSE-RoBERTa-base + Focal-InfoNCE", "77.60 ± 0.26", ""),
    ("UNA-RoBERTa-base", "76.74", ""),
    ("UNA-RoBERTa-base + paraphrases", "78.20", ""),
]
"""Model, published average, and averages of independent reproductions."""

SEED_NOTE = (
    "Over seeds, the average has a standard deviation of about 0.8 (UNA, table D8: SimCSE 75.16 ± 0.79, ten seeds)."
)
TEXT_NOTE = (
    "The published averages were measured on SentEval's text, which is tokenised and, except for SICK-R, lower-cased. "
    "Scores on the original text of the same pairs are not comparable."
)
