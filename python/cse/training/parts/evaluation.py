"""The evaluation of a run: development sets, the score without labels, and the STS tasks at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ...errors import InputError
from .fields import ELSEWHERE, Group, MayChange, NotNegative, Paths, Positive, Shown

if TYPE_CHECKING:
    from ...augment.base import Edit
    from ...evaluation.base import Pairs
    from ...evaluation.sts import Task
    from ...models.running.encoder import SentenceEncoder
    from ..watching import Selector
    from .data import TrainingData


class Evaluation(Group):
    """Evaluation"""

    dev: Annotated[tuple[str, ...], Paths(), Shown("FILE")] = ()
    """Scored pairs, to select best/ by Spearman's correlation; with several files, by the mean correlation.

    Each row holds a score and two sentences; see ``cse.evaluation.base.read_pairs``. Default: held-out rows
    are scored without labels; see ``cse.evaluation.geometry``."""
    eval_every: Annotated[NotNegative | None, MayChange()] = None
    """Steps between evaluations; 0: only before and after training."""
    patience: Annotated[Positive | None, MayChange()] = None
    """Stop after N evaluations in a row without a new highest score on --dev."""
    data: Annotated[str | None, Shown("DIR"), ELSEWHERE] = None
    """Evaluate best/ on the STS files in DIR at the end."""
    allow_partial: Annotated[bool, ELSEWHERE] = False
    """Accept incomplete STS files."""

    def check(self) -> None:
        """Raises ``InputError`` for settings that need each other."""
        if self.patience and not self.dev:
            raise InputError("--patience: needs --dev, a file of scored pairs to measure progress by")
        if self.allow_partial and not self.data:
            raise InputError("--allow-partial: belongs to --data, which was not given")


class ResolvedEvaluation(Evaluation):
    """The settings that have a value in every run."""

    eval_every: int


@dataclass(frozen=True)
class EvaluationData:
    """What a run is evaluated on."""

    pairs: dict[str, Pairs]
    """Development sets by file name; if there are none, held-out rows are scored without labels."""
    tasks: list[tuple[Task, Pairs]]
    """STS tasks on which best/ is evaluated at the end."""

    def selector(self, encoder: SentenceEncoder, data: TrainingData, negative: Edit | None, seed: int) -> Selector:
        """Returns the object that evaluates the encoder and selects best/.

        Args:
            encoder: The encoder.
            data: The data of the run, with the held-out rows.
            negative: The first method that makes synthetic negatives, if any; the cosine with them is logged.
            seed: Seed of the run.
        """
        from ...rng import Draws
        from ..watching import Selector

        rows = data.split.held_out
        held_out = data.corpus.take(rows)
        synthetic = negative(held_out, rows, Draws(seed, 0)) if held_out and negative else []
        return Selector(encoder, self.pairs, held_out, synthetic)


def open_evaluation(settings: Evaluation) -> EvaluationData:
    """Reads the development sets and the STS tasks; raises ``InputError`` for a missing or invalid file."""
    from ...evaluation.base import read_pairs
    from ...evaluation.sts import load_tasks

    tasks = load_tasks(settings.data, settings.allow_partial) if settings.data else []
    return EvaluationData({path: read_pairs(path) for path in settings.dev}, tasks)
