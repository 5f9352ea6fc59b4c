"""Semantic textual similarity, SimCSE's protocol "all": every subset of a task joined, cosine, one Spearman."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .geometry import alignment, uniformity, unit

__all__ = ["SEVEN", "PairScore", "Pairs", "Task", "find_tasks", "read_pairs", "score_pairs"]

# Pairs of each whole task, as in SentEval: a shorter file is said to be so, never scored in silence.
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


class Encodes(Protocol):
    """Whatever turns sentences into vectors."""

    def encode(
        self, texts: Sequence[str], *, batch_size: int = ..., progress: Callable[[int], None] | None = ...
    ) -> npt.NDArray[np.float32]:
        """(n, D)."""
        ...


@dataclass(frozen=True)
class Pairs:
    """Gold scores (n,), and two lists of n sentences."""

    gold: npt.NDArray[np.float64]
    left: list[str]
    right: list[str]


@dataclass(frozen=True)
class Task:
    """A task's file; ``expected`` pairs make it whole."""

    key: str
    title: str
    expected: int
    path: Path


@dataclass(frozen=True)
class PairScore:
    """Spearman's correlation x 100, the pairs it was computed on; alignment (pairs scored above 4), uniformity."""

    spearman: float
    pairs: int
    alignment: float
    uniformity: float

    def to_dict(self) -> dict[str, float]:
        """For logs."""
        return {
            "spearman": self.spearman,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
        }


def find_tasks(folder: str | Path) -> list[Task]:
    """The STS files in a folder, in the papers' order, development sets last."""
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


def read_pairs(path: str | Path) -> Pairs:
    """Reads score, sentence1, sentence2, separated by tabs; further columns are ignored, quotes are text."""
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
    """Spearman's correlation between cosines and gold scores; nan if the encoder gives all the same."""
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
