"""The evaluation of a run: what selects best/, what judges it, and the STS tasks at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...augment.base import Draws, Edit
from ...encoder.trained import SentenceEncoder
from ...evaluation import measures
from ...evaluation.base import Pairs
from ...evaluation.measures import Measure
from ...evaluation.sts import Task, load_tasks, read_dev
from ..selection import Selector
from .data import TrainingData

SAMPLE = 64
"""Number of rows whose embeddings are checked before training and at each evaluation."""


@dataclass(frozen=True)
class EvaluationData:
    """What a run is evaluated on."""

    pairs: dict[str, Pairs]
    """The scored pairs that select best/, by file name; if there are none, held-out rows are scored without labels."""
    judging: dict[str, Pairs]
    """The scored pairs that judge it; empty if all pairs of the files select."""
    queries: list[Measure]
    """The measure of the judged queries, if any."""
    tasks: list[tuple[Task, Pairs]]
    """STS tasks on which best/ is evaluated at the end."""

    def selector(
        self, encoder: SentenceEncoder, data: TrainingData, negative: Edit | None, seed: int, precision: str
    ) -> Selector:
        """Returns the object that selects best/; ``negative`` makes the synthetic negatives whose cosine is logged."""
        rows = data.split.held_out
        held_out = data.corpus.take(rows)
        synthetic = negative(held_out, rows, Draws(seed, 0)) if held_out and negative else []
        sample = list(dict.fromkeys(data.corpus.take(data.split.train[:SAMPLE])))
        halved = bool(self.judging)
        return Selector(encoder, self.pairs, held_out, synthetic, precision, sample, halved=halved)

    def measures(self, data: TrainingData) -> list[Measure]:
        """Returns what judges best/, in this order: judged queries, labels, development sets, held-out pairs."""
        halves = [measures.scored_pairs(name, pairs) for name, pairs in self.judging.items()]
        of_data = data.measures()
        return [*self.queries, *halves, *of_data] if data.labelled else [*self.queries, *of_data, *halves]


def open_evaluation(settings: Any, whole: bool) -> EvaluationData:
    """Reads the development sets, the judged queries and the STS tasks that the ``TrainConfig`` names.

    ``whole``: whether all pairs of the development sets select, so that none judge.
    """
    tasks = load_tasks(settings.data, settings.allow_partial) if settings.data else []
    queries = [measures.judged_queries(settings.judged_queries)] if settings.judged_queries else []
    pairs = read_dev(settings.dev, settings.data)
    selecting, judging = (pairs, {}) if whole or not pairs else measures.halve(pairs)
    return EvaluationData(selecting, judging, queries, tasks)
