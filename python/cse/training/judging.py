"""The verdict on the encoder in ``best/`` at the end of a run, against the encoder before training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import EqualVectors, InputError
from ..evaluation.base import Encodes, Evaluation, Report, Sample
from ..evaluation.labels import FEWEST, CrossFitted
from ..evaluation.options import STSOptions
from ..evaluation.significance import CANNOT_TELL, WORSE, scores_of
from ..evaluation.sts import STS
from ..evaluation.verdict import NOT_JUDGED, Verdict, judge
from .data import TrainingData
from .selection import EvaluationData, Selector

ByFold = Callable[[CrossFitted], list[list[Sample]]]
LABELS = "--labels COLUMN, if CORPUS is a table with a column of labels"
MORE = f"label more rows, so that two labels have {FEWEST} that judge"
QUERIES = "about 20 queries of your own, with cse compare MODEL RUN CORPUS --queries FILE --pool POOL.csv"


@dataclass
class Judge:
    """Judges best/ by evaluations that had no part in its selection."""

    evaluations: Sequence[Evaluation]
    """In the order in which they decide: judged queries, labels, halves of development sets, held-out pairs."""
    unjudged: str = ""  # why the column of labels that was named does not judge; else empty
    advice: str = f"to judge it: {QUERIES}"  # what would judge, if nothing does
    before: list[Sample] = field(default_factory=list)  # the samples of the encoder before training

    @classmethod
    def of(cls, evaluated: EvaluationData, data: TrainingData) -> Judge:
        """Returns the judge of a run from what it is evaluated on, and its data."""
        sets = evaluated.judging.items()
        halves = [STS(STSOptions(), {f"half of {Path(name).name}": pairs}) for name, pairs in sets]
        own = data.evaluations()
        ordered = [*evaluated.queries, *halves, *own] if data.labelled else [*evaluated.queries, *own, *halves]
        ways = [f"--labels {name}" for name in data.likely] or [LABELS]
        if data.labelled:
            ways = []
        if data.unjudged:
            ways = [MORE]
        return cls(ordered, data.unjudged, f"to judge it: {'; or '.join([*ways, QUERIES])}")

    @property
    def by_folds(self) -> bool:
        """Whether further encoders are trained to judge."""
        return any(isinstance(each, CrossFitted) for each in self.evaluations)

    def reports(self, encoder: Encodes, by_fold: ByFold | None = None) -> list[Report]:
        """Returns the reports of all evaluations for an encoder; with ``by_fold``, folds have encoders of their own."""
        return [
            each.joined(by_fold(each)) if by_fold and isinstance(each, CrossFitted) else each(encoder)
            for each in self.evaluations
        ]

    def state(self) -> tuple[list[list[str]], dict[str, npt.NDArray[np.float64]]]:
        """Returns what ``restore`` needs: names that can be serialised to JSON, and arrays."""
        arrays = {f"before.{i}": sample.values for i, sample in enumerate(self.before)}
        return [[sample.task, sample.unit] for sample in self.before], arrays

    def restore(self, names: list[list[str]], arrays: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Restores what ``state`` returned; gold scores and sentences are from the samples of best/."""
        self.before = [Sample(task, arrays[f"before.{i}"], unit=unit) for i, (task, unit) in enumerate(names)]

    def verdict(self, selector: Selector, best: Encodes | None, by_fold: ByFold | None = None) -> Verdict:
        """Returns the verdict on the selected encoder; ``best`` may be None if it is that before training. If all
        labels teach, ``by_fold`` trains an encoder for each fold, and returns its samples."""
        notes = [selector.check()] if selector.halves else []
        if not self.evaluations:
            selected = "the development set was used to select best/" if selector.pairs else "there are no labels"
            return Verdict(NOT_JUDGED, self.unjudged or selected, [], [self.advice, *notes])
        if selector.best_step == 0 or best is None:
            return Verdict(CANNOT_TELL, "best/ is the encoder before training", [], notes)
        try:
            reports = self.reports(best, by_fold)
        except EqualVectors:
            return Verdict(WORSE, "the vectors are all equal", [], notes)
        except InputError as error:  # its embeddings are not finite
            return Verdict(NOT_JUDGED, str(error))
        after = samples_of(reports)
        if [len(sample.values) for sample in after] != [len(sample.values) for sample in self.before]:
            why = "the encoder before training was judged by other data, or not at all"
            return Verdict(NOT_JUDGED, why, [], notes)
        before = [replace(new, values=old.values) for old, new in zip(self.before, after, strict=True)]
        return concluded(before, reports, notes)


def concluded(before: Sequence[Sample], after: Sequence[Report], notes: Sequence[str] = ()) -> Verdict:
    """Returns the verdict from the samples of one encoder, and the reports of the same evaluations for the other."""
    notes = [*(note for report in after for note in report.notes), *notes]
    beside = scores_of([sample for report in after for sample in report.beside])
    return judge(before, samples_of(after), notes, beside)


def samples_of(reports: Sequence[Report]) -> list[Sample]:
    return [sample for report in reports for sample in report.samples]
