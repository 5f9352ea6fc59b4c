"""The verdict on the encoder in ``best/`` at the end of a run, against the encoder before training."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .. import io
from ..data.corpus import Corpus
from ..encoder.base import NotFinite
from ..encoder.taught import Taught
from ..errors import EqualVectors, InputError
from ..evaluation.apart import Untaught, can_have_taught, untaught, without
from ..evaluation.base import FEWEST, Encodes, Evaluation, Report, Sample
from ..evaluation.labels import CrossFitted
from ..evaluation.options import STSOptions
from ..evaluation.significance import CANNOT_TELL, WORSE, baselines, scores_of
from ..evaluation.sts import STS
from ..evaluation.verdict import NOT_JUDGED, Verdict, judge
from ..identity import Keys, row_keys
from .data import TrainingData
from .remarks import check
from .selection import EvaluationData, Selector

BEFORE = "before.json"


class Values(TypedDict):
    """The values of the examples of a measure, for the encoder before training."""

    task: str
    unit: str
    values: list[float]


ByFold = Callable[[CrossFitted], list[list[Sample]]]
LABELS = "--labels COLUMN, if CORPUS is a table with a column of labels"
MORE = f"label more rows, so that two labels have {FEWEST} that judge"
QUERIES = "about 20 queries of your own, with cse compare MODEL RUN CORPUS --queries FILE --pool POOL.csv"


@dataclass
class Judge:
    """Judges best/ by evaluations that had no part in its selection."""

    evaluations: Sequence[Evaluation]
    """In the order in which they decide: those that were named, labels, halves of development sets, held-out pairs."""
    unjudged: str = ""  # why the column of labels that was named does not judge; else empty
    notes: Sequence[str] = ()  # what the base and the teachers were trained on, and what does not judge for it
    unknown: bool = False  # whether labels of texts that are not known taught the base or a teacher
    suites: Sequence[str] = ()  # of each evaluation, the name of the suite of --judge; "" of what was held out
    advice: str = f"to judge it: {QUERIES}"  # how to get a verdict, if there is nothing to judge by
    against: str | None = None  # the encoder with which best/ is compared; None: that before training
    anew: bool = False  # whether the models before the run, which the labels taught, are trained anew for each fold
    before: list[Sample] = field(default_factory=list)  # the samples of the encoder before training

    @classmethod
    def of(
        cls,
        evaluated: EvaluationData,
        data: TrainingData,
        taught: Taught,
        earlier: Mapping[str, Taught],
        against: str | None = None,
        apart: Mapping[str, Taught] | None = None,
    ) -> Judge:
        """Returns the judge of a run from what it is evaluated on, its data, and what taught it and, by name, the base
        model and the models that teach the run: rows whose labels taught one of these do not judge. ``apart`` are the
        models that judges by what is held out must not have taught; default: ``earlier``."""
        sets = evaluated.judging.items()
        selecting = row_keys(evaluated.selecting)
        halves = [STS(STSOptions(), {f"half of {Path(name).name}": pairs}) for name, pairs in sets]
        own = data.evaluations()
        held_out = [*halves, *own] if data.labelled else [*own, *halves]
        judges = [untaught(each, {**earlier, "this run": taught}) for each in evaluated.judges.values()]
        # What is held out is not what teaches, or is judged by encoders that are trained without it; but pairs may have
        # the letters of pairs that teach.
        others = earlier if apart is None else apart
        judges += [untaught(each, {**others, "this run": taught} if each.by_pairs else others) for each in held_out]
        judges = [unselected(each, selecting) for each in judges]
        named = [*evaluated.judges, *("" for _ in held_out)]
        ordered = [each.evaluation for each in judges if each.evaluation is not None]
        suites = [name for name, each in zip(named, judges, strict=True) if each.evaluation is not None]
        unjudged = data.unjudged or next((each.fault for each in judges if each.fault), "")
        ways = [f"--labels {quote(name)}" for name in data.likely] or [LABELS]
        if unjudged:
            ways = [MORE]
        if data.labelled:
            ways = []
        notes = list(dict.fromkeys(note for each in judges for note in each.notes))
        unknown = any(each.unknown for each in earlier.values())
        if against is not None:
            notes.append(f"compared with {against}, not with the encoder before this run")
        advice = f"to judge it: {'; or '.join([*ways, QUERIES])}"
        return cls(ordered, unjudged, notes, unknown, suites, advice, against, apart is not None)

    def begin(self, encoder: Encodes) -> None:
        """Evaluates the encoder before training; raises ``InputError`` for an evaluation that compares no examples."""
        reports = self.reports(encoder)
        for each, report in zip(self.evaluations, reports, strict=True):
            if not report.samples:
                raise InputError(f"--judge {each.data}: this suite has no values of single examples; name another one")
        self.before = samples_of(reports)

    @property
    def by_folds(self) -> bool:
        """Whether further encoders are trained to judge."""
        return self.further > 0

    @property
    def further(self) -> int:
        """How many further encoders are trained to judge."""
        return max((len(each.folds) for each in self.evaluations if isinstance(each, CrossFitted)), default=0)

    def compares(self, selector: Selector) -> bool:
        """Returns whether the encoder in ``best/`` is another one than that with which it is compared, or is judged by
        encoders of the folds."""
        return selector.best_step > 0 or self.against is not None or self.anew

    def needs_folds(self, selector: Selector) -> bool:
        """Returns whether the labels of the run have taught the encoder in ``best/``, which only encoders of the folds
        can judge then: in this run or, if it is that before training, in the runs before."""
        return self.by_folds and (selector.best_step > 0 or self.anew)

    def reports(self, encoder: Encodes, by_fold: ByFold | None = None) -> list[Report]:
        """Returns the reports of all evaluations for an encoder; with ``by_fold``, folds have encoders of their own."""
        return distinguished([each.judged(encoder, by_fold) for each in self.evaluations], self.evaluations)

    def write(self, run: Path) -> None:
        """Writes the values of the encoder before training to ``before.json``, for a resumed run."""
        values = [{"task": each.task, "unit": each.unit, "values": each.values.tolist()} for each in self.before]
        io.write_text(run / BEFORE, io.dumps(values) + "\n")

    def restore(self, run: Path, names: list[list[str]], arrays: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Reads what ``write`` wrote; gold scores and sentences are from the samples of best/. ``names`` and ``arrays``
        are what a checkpoint of an earlier version holds instead of the file."""
        if (run / BEFORE).is_file():
            stored = io.read_json(run / BEFORE, list[Values])
            self.before = [Sample(each["task"], np.array(each["values"]), unit=each["unit"]) for each in stored]
        else:
            self.before = [Sample(task, arrays[f"before.{i}"], unit=unit) for i, (task, unit) in enumerate(names)]

    def verdict(self, selector: Selector, best: Encodes | None, by_fold: ByFold | None = None) -> Verdict:
        """Returns the verdict on the selected encoder; ``best`` may be None if it is that before training, with which
        it is compared. If all labels teach, ``by_fold`` trains an encoder for each fold, and returns its samples."""
        notes = [*self.notes, *([check(selector)] if selector.halves else [])]
        if not self.evaluations:
            selected = (
                "the development set was used to select best/" if selector.scorer.pairs else "there are no labels"
            )
            return Verdict(NOT_JUDGED, self.unjudged or selected, [], [self.advice, *notes])
        if best is None or not self.compares(selector):
            return Verdict(CANNOT_TELL, "best/ is the encoder before training", [], notes)
        try:
            reports = self.reports(best, by_fold if self.needs_folds(selector) else None)
        except EqualVectors:
            return Verdict(WORSE, "the vectors are all equal", [], notes)
        except NotFinite as error:
            return Verdict(NOT_JUDGED, str(error))
        after = samples_of(reports)
        if [len(sample.values) for sample in after] != [len(sample.values) for sample in self.before]:
            why = "the encoder before training was judged by other data, or not at all"
            return Verdict(NOT_JUDGED, why, [], notes)
        before = [replace(new, values=old.values) for old, new in zip(self.before, after, strict=True)]
        undecided = [self.unknown and can_have_taught(each) for each in self.evaluations]
        found = concluded(before, reports, notes, undecided)
        if found.word == CANNOT_TELL and selector.has_become_flat:
            return replace(found, word=WORSE, why=f"{found.why}, but the embeddings are nearly all equal")
        return found


def unselected(found: Untaught, selecting: Keys) -> Untaught:
    """Returns a judge without the examples of which a text selected best/."""
    if found.evaluation is None or not len(selecting):
        return found
    rest, count, total = without(found.evaluation, lambda texts: np.isin(row_keys(texts), selecting))
    said = f"{count:,} of the {total:,} examples do not judge, because they selected best/"
    if rest is None:
        return Untaught(None, found.notes, said)
    return Untaught(rest, [*found.notes, *([said] if count else [])])


def distinguished(reports: Sequence[Report], evaluations: Sequence[Evaluation]) -> list[Report]:
    """Returns the reports, in which measures of the same name, as of two tables with the same column, have the name of
    the data added."""
    known: set[str] = set()
    changed = []
    for report, each in zip(reports, evaluations, strict=True):
        names = {sample.task for sample in (*report.samples, *report.beside)}
        if names & known:
            where = Path(each.source).name if isinstance(each.source, (str, Path)) else "held-out rows"
            samples, beside = (
                [replace(sample, task=f"{sample.task} ({where})") for sample in side]
                for side in (report.samples, report.beside)
            )
            report = replace(report, samples=samples, beside=beside)
        known |= names
        changed.append(report)
    return changed


def accents(evaluations: Iterable[Evaluation], corpus: Corpus, rows: npt.NDArray[np.int64], tokenizer: Any) -> str:
    """Returns how many examples that judge differ from a text of the rows only in accents, if the tokenizer drops
    these, so that the model was trained on the same tokens; "" if there are none."""
    apart = [each for each in evaluations if not each.trains]
    if tokenizer("\u00e9\u00fc")["input_ids"] != tokenizer("eu")["input_ids"]:
        return ""

    def plain(text: str) -> str:
        return "".join(each for each in unicodedata.normalize("NFD", text) if unicodedata.category(each) != "Mn")

    accented = [plain(text) for text in corpus.take(rows) if not text.isascii()]
    own = corpus.row_keys()[rows]
    keys = np.concatenate([own, row_keys(accented)])

    def differs(texts: list[str]) -> npt.NDArray[np.bool_]:
        return np.isin(row_keys([*map(plain, texts)]), keys) & ~np.isin(row_keys(texts), own)

    count = sum(int(each.known(differs).sum()) for each in apart)
    if not count:
        return ""
    return f"{count:,} examples judge that differ from a text to train on only in accents, which the model drops"


def concluded(
    before: Sequence[Sample], after: Sequence[Report], notes: Sequence[str] = (), undecided: Sequence[bool] = ()
) -> Verdict:
    """Returns the verdict from the samples of one encoder, and the reports of the same evaluations for the other;
    ``undecided`` are evaluations that cannot decide (``evaluation.apart``)."""
    notes = [*(note for report in after for note in report.notes), *notes]
    beside = baselines([sample for report in after for sample in report.beside])
    uncertain = {
        sample.task for report, each in zip(after, undecided, strict=False) if each for sample in report.samples
    }
    for report in after:  # each by the measures on its own rows
        best = max(scores_of([each for each in report.samples if each.classes is not None]).values(), default=math.inf)
        more = [name for name, score in scores_of(report.beside).items() if score > best]
        if more:
            notes.append(f"{' and '.join(more)}, without an encoder, scores higher than this encoder by each measure")
    return judge(before, samples_of(after), notes, beside, uncertain)


def samples_of(reports: Sequence[Report]) -> list[Sample]:
    return [sample for report in reports for sample in report.samples]
