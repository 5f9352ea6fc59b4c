"""The training loop: evaluation, training steps, logging, saving."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evaluation.sts import score_pairs
from ..io import dumps, write_text
from ..models.card import CardRecord, model_card
from ..models.encoder import load_encoder, save_encoder
from ..models.resolve import find_model
from .batches import Batch, Prefetcher
from .callbacks import Callback
from .config import TrainConfig
from .environment import environment
from .loggers import Clock, JsonLines, MetricBuffer, check_finite
from .saturation import SaturationCheck
from .setup import Run, choose_folder, describe_loss, prepare
from .state import TrainState
from .step import learning_rate, training_step

__all__ = ["RunResult", "train"]


@dataclass(frozen=True)
class RunResult:
    """The result of a training run."""

    folder: Path
    """Folder of the run: best/, last/, log.jsonl, config.toml, environment.json and result.json."""
    steps: int
    synthetic_steps: int
    """Steps with synthetic negatives."""
    seconds: float
    """Training time without evaluation."""
    best_step: int
    before: dict[str, float]
    """Scores before training."""
    after: dict[str, float]
    """Scores of the last step."""
    best: dict[str, float]
    """Scores of best/."""
    notes: list[str]
    """Remarks on the interpretation of the scores."""
    neighbours: list[dict[str, str]]
    """Held-out sentences whose nearest neighbour changed, with the neighbour before and after training."""
    sts: dict[str, float]
    """Spearman x 100 of best/ by STS task, if ``data`` was given."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the result as a dict that can be serialised to JSON."""
        return {**self.__dict__, "folder": str(self.folder)}


def train(config: TrainConfig, callback: Callback | None = None) -> RunResult:
    """Trains an encoder and saves it in a new folder under ``config.output``.

    ``best/`` of this folder is the selected encoder, ``last/`` the encoder after the last step. Evaluations are before
    training, every ``eval_every`` steps, and after the last step.

    Args:
        config: The training configuration.
        callback: Called during the run; see ``Callback``.

    Raises:
        InputError: Before training, for an invalid configuration or invalid data; during training, for a loss or
            gradient that is not finite.
        OSError: For a file that cannot be read or written.
    """
    callback = callback or Callback()
    run = prepare(config)
    state, steps = run.state, len(run.batches)
    callback.on_train_begin(run.facts, run.examples)
    with (
        run_folder(run) as folder,
        JsonLines(folder / "log.jsonl") as log,
        Prefetcher(run.batches, state.encoder.tokenizer, run.config.max_length) as batches,
    ):
        write_text(folder / "config.toml", run.config.to_toml())
        write_text(folder / "environment.json", dumps(environment(run.device), indent=2) + "\n")
        evaluate(run, log, callback)
        callback.on_status("training")
        state.encoder.train()
        buffer, clock = MetricBuffer(), Clock()
        saturation = SaturationCheck(run.config.positive, run.config.temperature)
        try:
            for step in range(state.step, steps):
                batch = batches.get(step)
                rate = learning_rate(run.config, step, steps)
                metrics = training_step(state, batch, run.config, rate, run.device)
                count(state, batch, clock)
                buffer.append(log_record(state, batch, rate, metrics))
                callback.on_step_end(state.step, steps)

                last = state.step == steps
                evaluation_due = last or (run.config.eval_every and state.step % run.config.eval_every == 0)
                if evaluation_due or state.step % run.config.log_every == 0:
                    records = buffer.read()
                    log.write(*records)
                    check_finite(records)
                    for record in records:
                        callback.on_log(record)
                    if note := saturation.update(records):
                        callback.on_warning(note)
                if evaluation_due:
                    clock.leave_out(evaluate(run, log, callback))
        except KeyboardInterrupt:
            if state.step:  # before the first step there is nothing to save
                with run.base.merged(state.encoder):
                    save(run, "last")
                log.write(*buffer.read())
                callback.on_interrupt(f"stopped at step {state.step}; {folder / 'last'} holds the encoder of that step")
            raise
        with run.base.merged(state.encoder):
            save(run, "last")
    result = RunResult(
        folder=folder,
        steps=steps,
        synthetic_steps=state.viewed["synthetic"],
        seconds=round(state.seconds, 2),
        best_step=state.selector.best_step,
        before=state.selector.records[0],
        after=state.selector.records[-1],
        best=state.selector.best_record,
        notes=[*state.selector.verdict(), *([saturation.note] if saturation.note else [])],
        neighbours=state.selector.neighbours(),
        sts=score_best(run, callback),
    )
    write_text(folder / "result.json", dumps(result.to_dict(), indent=2) + "\n")
    callback.on_train_end(result)
    return result


def evaluate(run: Run, log: JsonLines, callback: Callback) -> float:
    """Evaluates the encoder, saves it as best/ if it is selected, and returns the elapsed seconds."""
    began, state = time.perf_counter(), run.state
    callback.on_status("evaluating")
    with run.base.merged(state.encoder):
        record, keep = state.selector.score(state.step)
        log.write({"step": state.step, "event": "evaluation", **record})
        if keep:
            save(run, "best")
    callback.on_evaluate(state.step, record)
    return time.perf_counter() - began


def count(state: TrainState, batch: Batch, clock: Clock) -> None:
    """Updates the counters of the state after a step."""
    state.step += 1
    state.sentences += len(batch.rows)
    state.seconds = clock.seconds()
    state.viewed.update(batch.views)


def log_record(state: TrainState, batch: Batch, rate: float, metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the log record of a step; its metrics are tensors that are read later."""
    return {
        "step": state.step,
        "epoch": batch.epoch,
        "lr": rate,
        **metrics,
        **{f"masked/{view}": int((~mask).sum()) for view, mask in batch.masks.items()},
        "synthetic_steps": state.viewed["synthetic"],
        "sentences_per_second": round(state.sentences / state.seconds, 2),
    }


def save(run: Run, name: str) -> None:
    """Saves the encoder with a model card in the subfolder ``name`` of the run."""
    config, state = run.config, run.state
    source, selector = state.encoder.source, state.selector
    made = [f"{name} {each.describe()}" for name, each in zip(config.negatives, run.batches.negatives, strict=True)]
    negatives = f"Synthetic negatives: {'; '.join(made)}." if made else "No synthetic negatives."
    columns = {"spearman": ["spearman"], "mrr": ["mrr", "mrr_se"]}.get(selector.metric or "", [])
    private = {"corpus": (), "tfidf": "tfidf", "output": "runs", "dev": (), "data": None}
    card = CardRecord(
        model=config.model,
        embedding_dim=state.encoder.embedding_dim,
        # The head is not saved: without it, ``cls`` is the bare vector of the first token.
        pooler="cls_before_pooler" if config.pooler == "cls" else config.pooler,
        normalize=source.normalize,
        max_length=source.max_length,
        step=state.step,
        seed=config.seed,
        methods=f"Loss: {describe_loss(config)}. Positives: {config.positive}. {negatives}",
        config=config.replace(**private).to_toml(),
        columns=[*columns, "alignment", "uniformity"] if columns else [],
        scores=selector.records,
    )
    save_encoder(state.encoder, run.folder / name, model_card(card))


def score_best(run: Run, callback: Callback) -> dict[str, float]:
    """Returns Spearman x 100 of best/ on each STS task of the run; empty if there are none."""
    if not run.tasks:
        return {}
    callback.on_status("evaluating best/ on the STS tasks")
    encoder = load_encoder(find_model(str(run.folder / "best")), run.config.pooler).to(run.device).eval()
    return {task.title: score_pairs(encoder, pairs).spearman for task, pairs in run.tasks}


@contextmanager
def run_folder(run: Run) -> Iterator[Path]:
    """Creates the folder of a run; deletes it if the run fails before the end of its first step.

    If another run has created it meanwhile, the next free name is taken, unless the name was given.
    """
    while True:
        try:
            run.folder.mkdir(parents=True)
            break
        except FileExistsError:
            run.folder = choose_folder(run.config)  # InputError if the name was given
    try:
        yield run.folder
    except BaseException:
        if run.state.step == 0:
            shutil.rmtree(run.folder, ignore_errors=True)
        raise
