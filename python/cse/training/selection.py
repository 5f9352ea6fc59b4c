"""What a run is evaluated on, and the selection of the encoder that is saved as ``best/``.

With development sets, the encoder with the highest Spearman correlation is selected; this may be the encoder before
training. Without labels, the last encoder whose embeddings have not collapsed is selected, because the label-free score
differs too little between steps to choose by it.

The label-free score is the mean reciprocal rank (MRR) with which one half of a held-out sentence retrieves the other;
see ``cse.evaluation.geometry``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import hash_bytes, hash_file
from ..augment.base import Draws, Edit
from ..encoder.base import NotFinite
from ..encoder.trained import SentenceEncoder
from ..errors import EqualVectors, InputError
from ..evaluation import EVALUATIONS
from ..evaluation.base import FEWEST, Encodes, Evaluation, Pairs
from ..evaluation.significance import sentence_clusters
from ..evaluation.sts import Task, load_tasks, read_dev, score_pairs
from ..identity import distinct
from ..io import contents, dumps
from ..options import options_of, parse_options
from .data import TrainingData
from .scoring import SAMPLE, Scorer, Vectors
from .settings import declared

# The embeddings count as collapsed if the MRR is below this fraction of the highest MRR of earlier evaluations.
COLLAPSED = 0.5
# If the uniformity is above this value, nearly all embeddings are equal; see is_collapsed.
FLAT = -0.01
REMEDY = "lower --lr or raise --temperature"
# The MRR is close to chance if it is below both NEAR_CHANCE * c and c + SHARE_OF_THE_WAY * (1 - c), where c is the MRR
# of a random ranking. The second bound is the lower one for fewer than 39 sentences. See is_collapsed.
NEAR_CHANCE, SHARE_OF_THE_WAY = 3.0, 0.25
# Weights of the base model in averages that are tried if the trained encoder loses more.
SHARES = (0.1, 0.25, 0.5, 0.75)
# Above this MRR, hardly anything is left to gain.
NEAR_CEILING = 0.95


def chance_of(sentences: int) -> float:
    """Returns the MRR of a random ranking of n sentences, which is H(n) / n, with the harmonic number H."""
    return sum(1 / rank for rank in range(1, sentences + 1)) / sentences


def is_collapsed(score: Mapping[str, float], sentences: int) -> bool:
    """Returns whether embeddings are nearly all equal, or retrieve halves hardly better than chance."""
    chance = chance_of(sentences)
    close_to_chance = score["mrr"] < min(NEAR_CHANCE * chance, chance + SHARE_OF_THE_WAY * (1 - chance))
    return score["uniformity"] > FLAT or close_to_chance


class Selector:
    """Selects the encoder that is saved as best/, by the scores of a ``Scorer``.

    ``most_lost`` are the points of the score, times 100, that the encoder may lose if labels teach it; None if none do.
    """

    STORED = ("records", "best_step", "share", "collapsed", "misses")

    def __init__(self, scorer: Scorer, most_lost: float | None = None) -> None:
        self.scorer = scorer
        self.most_lost, self.teaching = most_lost, most_lost is not None
        self.records: list[dict[str, Any]] = []
        self.best_step, self.share = 0, 0.0  # the step of best/, and the weight of the base model in it if labels teach
        self.misses = 0  # number of evaluations since an encoder was last selected
        self.collapsed: list[int] = []
        self.vectors: list[Vectors] = []

    def state(self) -> tuple[dict[str, Any], dict[str, Vectors]]:
        """Returns what ``restore`` needs: values that can be serialised to JSON, and arrays."""
        arrays = {f"vectors.{i}": vector for i, vector in enumerate(self.vectors)}
        return {name: getattr(self, name) for name in self.STORED}, arrays

    def restore(self, values: dict[str, Any], arrays: dict[str, Vectors]) -> None:
        """Restores what ``state`` returned."""
        vars(self).update({name: values.get(name, getattr(self, name)) for name in self.STORED})
        self.vectors = [arrays[f"vectors.{i}"] for i in range(len([k for k in arrays if k.startswith("vectors.")]))]

    @property
    def best_record(self) -> dict[str, Any]:
        """The scores of the selected encoder."""
        return next((record for record in self.records if record["step"] == self.best_step), {})

    @property
    def halves(self) -> list[dict[str, Any]]:
        """The label-free scores so far, without the scores of embeddings that were not finite."""
        return [record for record in self.records if not math.isnan(record.get("mrr", math.nan))]

    @property
    def has_become_flat(self) -> bool:
        """Whether the embeddings of the selected encoder are nearly all equal, and those before training were not."""
        if not self.halves:
            return False
        after = self.best_record.get("uniformity", -math.inf)
        return bool(self.halves[0]["uniformity"] <= FLAT < after)

    def shares(self, step: int, share: float) -> Iterator[float]:
        """Yields the weights of the base model with which the encoder of a step is scored until one is selected: that
        of the run and, if labels teach, larger ones, as long as the encoder has not collapsed."""
        yield share
        if self.teaching and step and step not in self.collapsed:
            yield from (each for each in SHARES if each > share)

    def score(self, step: int, share: float = 0.0) -> tuple[dict[str, Any], bool]:
        """Evaluates the encoder, which is averaged with the base model with the weight ``share``; returns its scores by
        name, and whether it is selected as best/. Of several scores of one step, the one of best/ is kept, or the
        first."""
        vectors = None
        try:
            record, vectors = self.scorer.scores(first=not self.records)
            keep = self._keeps(step, record)
        except (NotFinite, EqualVectors):
            if not self.records:
                raise
            record, keep = {name: math.nan for name in self.records[0] if name != "step"}, False
            self.collapsed.append(step)
        if self.teaching and step:
            keep = step not in self.collapsed and not self.lost(record) > (self.most_lost or 0.0)
        again = bool(self.records) and self.records[-1]["step"] == step
        if keep or not again:
            earlier = self.records[: len(self.records) - again]
            highest = max(
                (each[self.scorer.metric] for each in earlier if self.scorer.metric in each), default=-math.inf
            )
            # If labels teach, encoders are selected that score less than earlier ones.
            improves = record.get(self.scorer.metric or "", 0.0) > highest if self.teaching and step else keep
            if not again:
                self.misses += 1
            self.misses = 0 if improves else self.misses
            self.records = [*earlier, {"step": step, **record}]
        if vectors is not None and (keep or not self.vectors):
            # ``neighbours`` needs the vectors of the first evaluation and of the selected encoder.
            self.vectors = [*self.vectors[:1], vectors]
        if keep:
            self.best_step, self.share = step, share
        return record, keep

    def lost(self, record: Mapping[str, Any]) -> float:
        """Returns by how many points a score is below that before training."""
        scale = 100 if self.scorer.metric == "mrr" else 1
        first, last = (each.get(self.scorer.metric or "", math.nan) for each in (self.records[0], record))
        return scale * float(first - last)

    def _keeps(self, step: int, record: Mapping[str, Any]) -> bool:
        """Returns whether the encoder of a step is the best so far or, without development sets, has not collapsed;
        notes a collapse."""
        if self.scorer.pairs:
            best = self.best_record.get("spearman", -math.inf)
            scored = not math.isnan(record["spearman"])
            if record["uniformity"] > FLAT and self.records and self.records[0]["uniformity"] <= FLAT:
                self.collapsed.append(step)
            return not self.records or (scored and (record["spearman"] > best or math.isnan(best)))
        if not self.scorer.held_out:
            return True
        peak = max((earlier["mrr"] for earlier in self.halves), default=0.0)
        number = len(self.scorer.held_out)
        news = is_collapsed(record, number) and not all(is_collapsed(half, number) for half in self.halves)
        keep = bool(record["mrr"] >= COLLAPSED * peak) and not news
        if not keep:
            self.collapsed.append(step)
        return keep


@dataclass(frozen=True)
class EvaluationData:
    """What a run is evaluated on."""

    pairs: dict[str, Pairs]
    """The scored pairs that select best/, by file name; if there are none, held-out rows are scored without labels."""
    judging: dict[str, Pairs]  # the scored pairs that judge it; empty if all pairs of the files select
    judges: dict[str, Evaluation]  # suites on further data that judge it, by name
    tasks: list[tuple[Task, Pairs]]  # STS tasks on which best/ is evaluated at the end

    @property
    def selecting(self) -> list[str]:
        """The texts whose scores select best/."""
        return [text for each in self.pairs.values() for text in (*each.left, *each.right)]

    def fingerprints(self, settings: declared.Evaluation) -> dict[str, str]:
        """Returns hashes of the development sets and of the files of ``judged_queries``, by name: a resumed run needs
        the same, since it compares scores of examples."""
        every = [*self.pairs.items(), *self.judging.items()]
        scored = [[name, pairs.gold.tolist(), pairs.left, pairs.right] for name, pairs in every]
        sets = {"--dev": hash_bytes(dumps(scored).encode())} if scored else {}
        folder = Path(settings.judged_queries or "")
        files = [folder / name for name in sorted(contents(folder))] if settings.judged_queries else []
        return sets | {str(path): hash_file(str(path)) for path in files}

    def selector(
        self,
        encoder: SentenceEncoder,
        data: TrainingData,
        negative: Edit | None,
        seed: int,
        precision: str,
        most_lost: float | None,
    ) -> Selector:
        """Returns the object that selects best/; ``negative`` makes the synthetic negatives whose cosine is logged, and
        ``most_lost`` is as for ``Selector``."""
        rows = data.split.held_out
        held_out = data.corpus.take(rows)
        synthetic = negative(held_out, rows, Draws(seed, 0)) if held_out and negative else []
        sample = distinct(data.corpus.take(data.split.train[:SAMPLE]))
        halved = bool(self.judging)
        scorer = Scorer(encoder, self.pairs, held_out, synthetic, precision, sample, halved)
        return Selector(scorer, most_lost)

    def scores(self, encoder: Encodes, warn: Callable[[str], None]) -> dict[str, float]:
        """Returns Spearman's correlation x 100 by STS task; it is NaN, after a warning, for embeddings not finite."""
        scores = {}
        for task, pairs in self.tasks:
            try:
                scores[task.title] = score_pairs(encoder, pairs).spearman
            except NotFinite as error:
                warn(f"{task.title}: {error}")
                scores[task.title] = math.nan
        return scores


def open_evaluation(
    settings: declared.Evaluation, options: Mapping[str, Mapping[str, Any]], column: str | None, whole: bool
) -> EvaluationData:
    """Reads the development sets, the data of the suites that judge, and the STS tasks that the settings name;
    ``options`` are those of the suites by name, and ``column`` is the column of the texts of the run."""
    tasks = load_tasks(settings.data, settings.allow_partial) if settings.data else []
    pairs = read_dev(settings.dev, settings.data)
    selecting, judging = (pairs, {}) if whole or not pairs else halve(pairs)
    return EvaluationData(selecting, judging, open_judges(settings, options, column), tasks)


def open_judges(
    settings: declared.Evaluation, options: Mapping[str, Mapping[str, Any]], column: str | None
) -> dict[str, Evaluation]:
    """Opens the suites of ``--judge`` on their data, by name."""
    known = {"column": column, "labels": settings.labels}
    judges: dict[str, Evaluation] = {}
    for given in [*settings.judges, *([f"retrieval={settings.judged_queries}"] if settings.judged_queries else [])]:
        name, _, path = given.partition("=")
        if not path or not Path(path).exists():
            raise InputError(f"--judge {given}: must be SUITE=PATH, with a file or folder that exists")
        if name in judges:
            raise InputError(f"--judge {given}: the suite {name} judges once; name one of its paths")
        kind = EVALUATIONS.get(name, "--judge")
        columns = {each: known[each] for each in known if each in {option.name for option in options_of(kind.Options)}}
        table = {key: value for key, value in columns.items() if value is not None} | dict(options.get(name, {}))
        judges[name] = kind(parse_options(name, kind.Options, table), path)
    return judges


def halve(sets: Mapping[str, Pairs]) -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """Splits development sets in two, one half to select by and one to judge by; no sentence is in both. Groups of
    pairs that share a sentence, directly or through other pairs, are dealt to the halves in turn, the largest first. If
    a half of a set would have fewer than ``FEWEST`` groups or equal scores, all pairs select, none judge."""
    rows = [
        (name, place, *pair)
        for name, pairs in sets.items()
        for place, pair in enumerate(zip(pairs.left, pairs.right, strict=True))
    ]

    def key(group: npt.NDArray[np.int64]) -> tuple[int, bytes]:
        texts = (text for row in group for text in rows[row][2:])
        return -len(group), min(hashlib.blake2b(text.encode("utf8", "replace")).digest() for text in texts)

    halves: tuple[list[npt.NDArray[np.int64]], list[npt.NDArray[np.int64]]] = ([], [])
    counts = [0, 0]
    for group in sorted(sentence_clusters([row[2] for row in rows], [row[3] for row in rows]), key=key):
        side = int(counts[1] < counts[0])
        counts[side] += len(group)
        halves[side].append(group)
    split: list[dict[str, Pairs]] = [{}, {}]
    for half, groups in zip(split, halves, strict=True):
        for name, pairs in sets.items():
            own = [[rows[row][1] for row in group if rows[row][0] == name] for group in groups]
            chosen = sorted(chain.from_iterable(own))
            texts = ([side[row] for row in chosen] for side in (pairs.left, pairs.right))
            half[name] = Pairs(pairs.gold[chosen], *texts)
            if sum(map(bool, own)) < FEWEST or len(set(half[name].gold)) < 2:
                return dict(sets), {}
    return split[0], split[1]
