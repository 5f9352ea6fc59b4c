"""A training run that is ready to start, what it is evaluated on, and its result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..augment.base import Draws, Edit, Example
from ..encoder.saving import BaseWeights
from ..encoder.trained import SentenceEncoder
from ..evaluation import measures as measuring
from ..evaluation.base import Pairs
from ..evaluation.measures import Measure
from ..evaluation.sts import Task, load_tasks, read_dev
from .batches.batches import Batches
from .batches.tokens import StoredTokens
from .data import RunIndex, TrainingData
from .selection import Selector
from .step.encode import Forward
from .step.optimiser import Schedule
from .step.state import TrainState

SAMPLE = 64  # number of rows whose embeddings are checked before training and at each evaluation


@dataclass(frozen=True)
class EvaluationData:
    """What a run is evaluated on."""

    pairs: dict[str, Pairs]
    """The scored pairs that select best/, by file name; if there are none, held-out rows are scored without labels."""
    judging: dict[str, Pairs]  # the scored pairs that judge it; empty if all pairs of the files select
    queries: list[Measure]  # the measure of the judged queries, if any
    tasks: list[tuple[Task, Pairs]]  # STS tasks on which best/ is evaluated at the end

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
        halves = [measuring.scored_pairs(name, pairs) for name, pairs in self.judging.items()]
        of_data = data.measures()
        return [*self.queries, *halves, *of_data] if data.labelled else [*self.queries, *of_data, *halves]


def open_evaluation(settings: Any, whole: bool) -> EvaluationData:
    """Reads the development sets, the judged queries and the STS tasks that the ``TrainConfig`` names."""
    tasks = load_tasks(settings.data, settings.allow_partial) if settings.data else []
    queries = [measuring.judged_queries(settings.judged_queries)] if settings.judged_queries else []
    pairs = read_dev(settings.dev, settings.data)
    selecting, judging = (pairs, {}) if whole or not pairs else measuring.halve(pairs)
    return EvaluationData(selecting, judging, queries, tasks)


@dataclass
class Run:
    """A training run, ready to start."""

    config: Any  # the configuration (TrainConfig) with all options of the methods that are used, for callbacks to read
    folder: Path
    state: TrainState
    schedule: Schedule
    batches: Batches
    forward: Forward  # how batches are encoded: device, precision, chunks
    reason: str  # why the precision was chosen
    tokens: dict[int, StoredTokens]  # stored token ids by column number; see open_tokens
    evaluation: EvaluationData  # what selects best/, and the STS tasks
    measures: list[Measure]
    """What judges best/ at the end, against the encoder before training; see ``cse.evaluation.verdict``."""
    unjudged: str  # why the column of labels that was named does not judge; else empty
    facts: dict[str, str]
    """Descriptions of device, model, loss, corpus and so on, by name; they are shown before training."""
    card: dict[str, Any]  # what the card of a saved model says about the run; see model_card
    examples: list[Example]  # sentences with their augmented forms, shown before training
    data: dict[str, Any]
    """Fingerprints of the corpus, the index and the files of methods; a resumed run must have the same ones."""
    index: RunIndex  # the TF-IDF index, if a method uses one
    base: BaseWeights = field(init=False)  # the weights before training, for merge_with_base

    def __post_init__(self) -> None:
        self.base = BaseWeights(self.state.encoder, self.config.merge_with_base)

    @property
    def device(self) -> str:
        """The device of this rank."""
        return self.forward.device

    @contextmanager
    def saved_weights(self) -> Iterator[None]:
        """Context manager in which the encoder has the weights that are evaluated and saved."""
        with ExitStack() as stack:
            for method in self.state.methods.values():
                stack.enter_context(method.for_evaluation())
            stack.enter_context(self.base.merged(self.state.encoder))
            yield


@dataclass(frozen=True)
class RunResult:
    """The result of a training run."""

    folder: Path
    """Folder of the run, with best/, last/, log.jsonl, config.toml, environment.json, result.json and other files."""
    steps: int
    synthetic_steps: int
    """Number of steps in which the first method in ``config.negatives`` made synthetic negatives."""
    seconds: float
    """Training time in seconds, without evaluation."""
    best_step: int
    before: dict[str, float]
    """Scores before training."""
    after: dict[str, float]
    """Scores after the last step."""
    best: dict[str, float]
    """Scores of best/."""
    notes: list[str]
    """Remarks on the interpretation of the scores."""
    verdict: dict[str, Any]
    """Whether best/ is better than the encoder before training; see ``cse.evaluation.verdict.Verdict``."""
    neighbours: list[dict[str, str]]
    """At most three held-out sentences whose nearest neighbour changed, with the neighbours before and after training;
    the latter are those of the encoder in best/."""
    sts: dict[str, float]
    """Spearman's correlation x 100 of best/ by STS task; empty without ``config.data``."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as a dict that can be serialised to JSON."""
        return {**self.__dict__, "folder": str(self.folder)}
