"""The evaluation of a run: what selects best/, what judges it, and the STS tasks at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...augment.base import Edit
    from ...encoder.trained import SentenceEncoder
    from ...evaluation.base import Pairs
    from ...evaluation.measures import Measure
    from ...evaluation.sts import Task
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
        """Returns the object that evaluates the encoder and selects best/.

        Args:
            encoder: The encoder.
            data: The data of the run, with the held-out rows.
            negative: The first method that makes synthetic negatives, if any; the cosine with them is logged.
            seed: Seed of the run.
            precision: Precision of the run.
        """
        from ...rng import Draws
        from ..selection import Selector

        rows = data.split.held_out
        held_out = data.corpus.take(rows)
        synthetic = negative(held_out, rows, Draws(seed, 0)) if held_out and negative else []
        sample = list(dict.fromkeys(data.corpus.take(data.rows[:SAMPLE])))
        halved = bool(self.judging)
        return Selector(encoder, self.pairs, held_out, synthetic, precision, sample, halved=halved)

    def measures(self, data: TrainingData) -> list[Measure]:
        """Returns what judges best/, in this order: judged queries, labels, development sets, held-out pairs."""
        from ...evaluation.measures import scored_pairs

        halves = [scored_pairs(name, pairs) for name, pairs in self.judging.items()]
        of_data = data.measures()
        return [*self.queries, *halves, *of_data] if data.labelled else [*self.queries, *of_data, *halves]


def open_evaluation(
    dev: Sequence[str], whole: bool, judged_queries: str | None, data: str | None, allow_partial: bool
) -> EvaluationData:
    """Reads the development sets, the judged queries and the STS tasks.

    Args:
        dev: Files of scored pairs.
        whole: Whether all their pairs select, so that none judge.
        judged_queries: Folder of queries and relevance judgements.
        data: Folder of the STS tasks.
        allow_partial: Whether these may be incomplete.

    Raises:
        InputError: For a missing or invalid file.
    """
    from ...evaluation import measures
    from ...evaluation.sts import load_tasks, read_dev

    tasks = load_tasks(data, allow_partial) if data else []
    queries = [measures.judged_queries(judged_queries)] if judged_queries else []
    pairs = read_dev(dev, data)
    selecting, judging = (pairs, {}) if whole or not pairs else measures.halve(pairs)
    return EvaluationData(selecting, judging, queries, tasks)
