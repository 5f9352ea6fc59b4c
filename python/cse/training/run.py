"""A training run that is ready to start, and its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..augment.base import Example
from ..classifier.labelled import Labelled
from ..encoder.saving import BaseWeights
from ..encoder.taught import Taught
from ..evaluation.kept import Source
from .batches.texts import Batches
from .batches.tokens import StoredTokens
from .data import RunIndex
from .judging import Judge
from .selection import EvaluationData
from .settings.resolve import Resolved
from .step.encode import Forward
from .step.optimiser import Schedule
from .step.state import TrainState


@dataclass
class Run:
    """A training run, ready to start."""

    settings: Resolved  # with all options of the methods that are used
    folder: Path
    state: TrainState
    schedule: Schedule
    batches: Batches
    forward: Forward  # how batches are encoded: device, precision, chunks
    reason: str  # why the precision was chosen
    tokens: dict[int, StoredTokens]  # stored token ids by column number; see open_tokens
    evaluation: EvaluationData  # what selects best/, and the STS tasks
    judge: Judge  # what judges best/ at the end, against the encoder before training
    taught: Taught  # what the encoder is taught, with what taught its base and its teachers
    earlier: list[Taught]  # what taught its base and its teachers, without those trained anew for each fold
    again: float  # seconds of the runs before, if they are trained anew for each fold
    labelled: Labelled | None  # the texts with labels to which the classifier is fitted
    sources: list[Source]  # where the texts that judge are found again
    examples: list[Example]  # sentences with their augmented forms, shown before training
    data: dict[str, Any]
    """Fingerprints of the corpus, the index and the files of methods; a resumed run must have the same ones."""
    index: RunIndex  # the TF-IDF index, if a method uses one
    facts: dict[str, str] = field(default_factory=dict)
    """Descriptions of device, model, loss, corpus and so on, by name; they are shown before training."""
    card: dict[str, Any] = field(default_factory=dict)  # what the card of a saved model says about it; see model_card
    base: BaseWeights = field(init=False)  # the weights before training, if the encoder's are averaged with them

    def __post_init__(self) -> None:
        wanted = bool(self.settings.optimisation.merge_with_base) or self.state.selector.teaching
        self.base = BaseWeights(self.state.encoder, wanted)

    @property
    def device(self) -> str:
        """The device of this rank."""
        return self.forward.device

    @contextmanager
    def saved_weights(self, share: float | None = None) -> Iterator[None]:
        """Context manager in which the encoder has the weights that are evaluated and saved: averaged with those before
        training, which have the weight ``share`` (default: ``merge_with_base``)."""
        share = self.settings.optimisation.merge_with_base if share is None else share
        with ExitStack() as stack:
            for method in self.state.methods.values():
                stack.enter_context(method.for_evaluation())
            stack.enter_context(self.base.merged(self.state.encoder, share))
            yield


@dataclass(frozen=True)
class RunResult:
    """The result of a training run."""

    folder: Path
    """Folder of the run, with best/, last/, log.jsonl, config.toml, environment.json, result.json and other files."""
    steps: int
    synthetic_steps: int
    """Number of steps in which the first method in ``settings.methods.negatives`` made synthetic negatives."""
    seconds: float
    """Training time in seconds, without evaluation."""
    best_step: int
    before: dict[str, float]
    """Scores before training."""
    after: dict[str, float]
    """Scores after the last step; of best/, if labels teach and it is an average of this step and the base model."""
    best: dict[str, float]
    """Scores of best/."""
    notes: list[str]
    """Remarks on the interpretation of the scores."""
    verdict: dict[str, Any]
    """Whether best/ is better than the encoder before training; see ``cse.evaluation.verdict.Verdict``."""
    classifier: dict[str, Any] | None
    """What labelled rows promise about the labels that the classifier of best/ predicts; see
    ``cse.classifier.promise.Promise.to_dict``; None without labels."""
    neighbours: list[dict[str, str]]
    """At most three held-out sentences whose nearest neighbour changed, with the neighbours before and after training;
    the latter by the encoder in best/."""
    sts: dict[str, float]
    """Spearman's correlation x 100 of best/ by STS task; empty without ``config.data``."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as a dict that can be serialised to JSON."""
        return {**self.__dict__, "folder": str(self.folder)}
