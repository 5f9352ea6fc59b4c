"""The evaluation of a run: development sets, the score without labels, and the STS tasks at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...augment.base import Edit
    from ...evaluation.base import Pairs
    from ...evaluation.sts import Task
    from ...models.running.encoder import SentenceEncoder
    from ..selection import Selector
    from .data import TrainingData


@dataclass(frozen=True)
class EvaluationData:
    """What a run is evaluated on."""

    pairs: dict[str, Pairs]
    """Development sets by file name; if there are none, held-out rows are scored without labels."""
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
        return Selector(encoder, self.pairs, held_out, synthetic, precision)


def open_evaluation(dev: Sequence[str], data: str | None, allow_partial: bool) -> EvaluationData:
    """Reads the development sets and the STS tasks; raises ``InputError`` for a missing or invalid file."""
    from ...evaluation.sts import load_tasks, read_dev

    tasks = load_tasks(data, allow_partial) if data else []
    return EvaluationData(read_dev(dev, data), tasks)
