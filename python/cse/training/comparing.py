"""Compares the encoders of two runs by what judged one of them, without rows that the other was trained on."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ..context import Context
from ..errors import InputError
from ..evaluation import base
from ..evaluation.base import Encodes, Pairs
from ..evaluation.geometry import PairSearch
from ..evaluation.labels import FEWEST, CrossFitted, Labels
from ..evaluation.sts import STS
from ..evaluation.verdict import Verdict
from ..identity import row_keys
from ..options import options_of
from .data import TrainingData, open_data, open_index
from .folder.find import CONFIG
from .judging import Judge, concluded, samples_of
from .selection import EvaluationData, open_evaluation
from .settings.declared import Data, Evaluation, Methods, Output
from .settings.given import TrainConfig
from .settings.presets import is_published

Mask = npt.NDArray[np.bool_]
T = TypeVar("T")


@dataclass(frozen=True)
class Inputs:
    """The data of a run, opened again from its configuration."""

    name: str
    config: TrainConfig
    evaluated: EvaluationData
    data: TrainingData

    @classmethod
    def of(cls, run: str) -> Inputs:
        config, context = TrainConfig.from_toml(Path(run) / CONFIG), Context()

        def group(kind: type[T]) -> T:
            return kind(**{option.name: getattr(config, option.name) for option in options_of(kind)})

        data, methods, evaluation = group(Data), group(Methods), group(Evaluation)
        open_index(data, methods, Path(run), context)
        opened = open_data(data, methods, evaluation, group(Output), context, lambda *_: None)
        whole = is_published((config.given or {}).get("preset"))
        return cls(run, config, open_evaluation(evaluation, whole), opened)

    @cached_property
    def judge(self) -> Judge:
        judge = Judge.of(self.evaluated, self.data)
        return replace(judge, evaluations=[each for each in judge.evaluations if not isinstance(each, CrossFitted)])

    @cached_property
    def used(self) -> npt.NDArray[np.uint64]:
        """Row keys of the texts that the run was trained on, and of those that selected best/."""
        rows = self.data.split.train
        pairs = [text for each in self.evaluated.pairs.values() for text in (*each.left, *each.right)]
        return np.concatenate([*(each.row_keys()[rows] for each in self.data.columns), row_keys(pairs)])

    def seen(self, texts: list[str]) -> Mask:
        return np.isin(row_keys(texts), self.used)


def without(evaluation: base.Evaluation, seen: Callable[[list[str]], Mask]) -> tuple[base.Evaluation | None, int]:
    """Returns an evaluation without examples that were seen, or None if too few are left, and the number of these."""
    if isinstance(evaluation, Labels):
        texts = evaluation.texts
        kept = ~seen(texts.texts)
        chosen = [text for text, keep in zip(texts.texts, kept, strict=True) if keep]
        rest = replace(texts, texts=chosen, labels=texts.labels[kept])
        enough = (np.bincount(rest.labels) >= FEWEST).sum() > 1
        return Labels(evaluation.options, rest) if enough else None, int((~kept).sum())
    if isinstance(evaluation, PairSearch):
        kept = ~(seen(evaluation.columns[0]) | seen(evaluation.columns[1]))
        left, right = ([text for text, keep in zip(each, kept, strict=True) if keep] for each in evaluation.columns)
        return PairSearch(evaluation.options, (left, right)) if kept.sum() >= FEWEST else None, int((~kept).sum())
    if isinstance(evaluation, STS):
        ((task, pairs),) = evaluation.tasks
        kept = ~(seen(pairs.left) | seen(pairs.right))
        left, right = (
            [text for text, keep in zip(each, kept, strict=True) if keep] for each in (pairs.left, pairs.right)
        )
        enough = len(set(pairs.gold[kept])) > 1
        rest_of = {task.title: Pairs(pairs.gold[kept], left, right)}
        return STS(evaluation.options, rest_of) if enough else None, int((~kept).sum())
    return evaluation, 0


def compare_runs(first: str, second: str, load: Callable[[str], Encodes]) -> Verdict:
    """Returns the verdict on the encoder of the second run against the first run's, by what judged the first run
    or, if nothing did, the second one; ``load`` returns the encoder of a run. Examples whose texts the other run was
    trained on, or selected by, do not judge."""
    one, other = Inputs.of(first), Inputs.of(second)
    if not one.judge.evaluations:
        one, other = other, one
    if not one.judge.evaluations:
        raise InputError(
            f"{first}, {second}: nothing judged these runs; name what does, with --data PATH, or judge texts yourself "
            "with --pool"
        )
    notes, evaluations = [f"judged by what judged {one.name}"], []
    for evaluation in one.judge.evaluations:
        rest, count = without(evaluation, other.seen)
        if count:
            notes.append(
                f"{count:,} examples do not judge, because {other.name} was trained on them or was selected by them"
            )
        evaluations += [] if rest is None else [rest]
    if not evaluations:
        raise InputError(
            f"{other.name}: it was trained on all rows that judged {one.name}; name others, with --data PATH"
        )
    before, after = ([evaluation(load(name)) for evaluation in evaluations] for name in (first, second))
    return concluded(samples_of(before), after, notes)


def check_apart(run: str, evaluation: Labels, data: str) -> str:
    """Returns a remark if a run was trained on texts of the table that judge it; it must not know their labels."""
    config = TrainConfig.from_toml(Path(run) / CONFIG)
    files = [file for name in config.corpus for file in glob.glob(name) or [name]]
    if os.path.realpath(data) not in map(os.path.realpath, files):
        return ""
    seen, total = int(Inputs.of(run).seen(evaluation.texts.texts).sum()), len(evaluation.texts.texts)
    if seen and config.learn:
        raise InputError(
            f"{run}: it was trained on these labels ({seen:,} of {total:,} rows); name rows that it was not trained on"
        )
    return f"{run} was trained on {seen:,} of the {total:,} texts, without their labels" if seen else ""
