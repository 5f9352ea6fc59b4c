"""The evaluation of a run: development sets, the score without labels, and the STS tasks at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError

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
    from ...evaluation.base import read_pairs
    from ...evaluation.sts import CLEAN, clean_development, load_tasks

    tasks = load_tasks(data, allow_partial) if data else []
    pairs: dict[str, Pairs] = {}
    for path in dev:
        if path != CLEAN or Path(path).exists():
            pairs[path] = read_pairs(path)
        elif data is None:
            raise InputError("--dev clean is made from the STS files of --data; add --data DIR")
        else:
            pairs |= clean_development(data)
    return EvaluationData(pairs, tasks)
