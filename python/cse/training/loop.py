"""The training loop: evaluation, training steps, logging and saving."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from ..classifier.described import record
from ..data.corpus import IN_MEMORY
from ..encoder.device import generator_states, recorder_of, restore_generators
from ..encoder.encoder import Encoder
from ..errors import InputError, Interrupted, RunError, check_labels, check_texts, for_python, sentence
from ..evaluation.base import Encodes
from ..io import dumps, remove_folder, write_text
from . import folds, remarks, sequence
from .batches.prepared import Batch, Prefetcher
from .callbacks import Callback, Callbacks
from .classifying import classify
from .data import check_same, check_source
from .folder import outputs
from .folder.find import find_checkpoint, list_checkpoints, resuming
from .folder.stored import resumed_config as resumed_config
from .judging import ByFold
from .loggers import LOGGERS
from .run import Run
from .run import RunResult as RunResult
from .settings.given import TrainConfig
from .setup import prepare
from .step.ranks import Agreement, StopRequest, World, connected
from .step.recorded import RecordedStep
from .step.step import training_step
from .watching import MetricBuffer, SlowSteps, failures

# By default, shorter runs are not recorded: they would save about a second, and the graphs reserve memory besides
# the memory of the eager steps before them.
WORTH_RECORDING = 50
GO_ON = "to go on with this run and those after it, repeat the command"


@for_python
def train(
    config: TrainConfig,
    callback: Callback | None = None,
    *,
    resume: str | Path | None = None,
    texts: Iterable[str] | None = None,
    labels: Iterable[Any] | None = None,
) -> RunResult:
    """Trains an encoder and saves it in a new folder under ``config.output``.

    In this folder, ``best/`` is the selected encoder, and ``last/`` is the encoder after the last step. The encoder is
    evaluated before training, every ``eval_every`` steps, and after the last step. On SIGINT, SIGTERM or SIGHUP, the
    step in progress is finished and a checkpoint is saved. Processes started by torchrun train together; see
    ``cse.training.step.ranks``.

    Args:
        config: The training configuration. With ``resume``, the values that were given for the run, some of them
            changed: those that may change in a run that has begun, such as ``max_steps``; others are refused.
        callback: Called during the run; see ``Callback``. ``ProgressCallback()`` shows progress and scores. Default:
            nothing is shown.
        resume: Folder of the run to resume, or of one of its checkpoints. On the same CPU, with the same number of
            threads, the resumed run is bit-identical to an uninterrupted one.
        texts: Sentences in memory to train on, instead of ``config.corpus``. Line breaks become spaces. The
            sentences are not saved; pass the same ones to resume the run.
        labels: The label of each text, of any type; None, NaN or "": none. They judge the run, as a column
            ``config.labels`` of a table does; the name of that column (default: ``labels``) is theirs.

    Raises:
        InputError: Before training, for an invalid configuration or invalid data.
        RunError: For a damaged checkpoint and, during training, for a loss or gradient that is not finite,
            insufficient memory, or a file that cannot be written.
        OSError: Before training, for a file that cannot be read or written; after training, if result.json cannot be
            written.
        Interrupted: If a signal stops the run.
    """
    if not isinstance(config, TrainConfig):
        raise InputError(f"train: a TrainConfig was expected, not one {type(config).__name__}; use TrainConfig(...)")
    if not isinstance(callback, Callback | None):
        raise InputError(f"callback: {callback!r} is not an object of a class derived from cse.Callback")
    if resume is not None:
        checked = resumed_config(resume, config.values(), "resume", "leave these values as they are")
        config = checked if config.given is None else checked.copied(given=config.given)
    rows = None
    if texts is not None:
        if config.pairs or config.column is not None or config.corpus not in ((), (IN_MEMORY,)):
            raise InputError("texts: cannot be combined with corpus, column or pairs; leave out texts, or the others")
        rows, config = check_texts(texts), config.replace(corpus=(IN_MEMORY,), given=config.given)
    known = None
    if labels is not None:
        if rows is None:
            raise InputError(
                "labels: must be given with texts; for a table, name its column with TrainConfig(labels=...)"
            )
        known = check_labels(labels, len(rows))
        config = config.replace(labels=config.labels or "labels", given=config.given)
    check_source(config.corpus, config.pairs, config.tfidf)
    names = dict.fromkeys(["jsonl", *config.loggers])
    watching = [*(LOGGERS.get(name, "--logger")() for name in names), callback or Callback()]
    with (
        connected(config.device) as world,
        closing(Callbacks(watching) if world.is_main else Callback()) as shown,
    ):
        if resume is not None or not sequence.is_sequence(config):
            sequence.check(config)
            return trained(config, world, shown, None if resume is None else Path(resume), rows, known)
        return in_sequence(config, world, shown, rows, known)


def in_sequence(
    config: TrainConfig, world: World, shown: Callback, texts: Sequence[str] | None, labels: Sequence[Any] | None
) -> RunResult:
    """Trains the runs of ``--learn --teacher``, one after the other; see ``sequence``."""
    count, to_come = 3 if config.tune_teacher else 2, ""

    def check(given: TrainConfig) -> None:
        nonlocal to_come
        run = prepare(given, world, None, shown.on_progress, texts, labels)
        to_come = sequence.to_come(len(run.batches), run.judge.further, config.tune_teacher)

    def first(given: TrainConfig, folder: Path | None) -> None:
        number = 1 if given.learn or not config.tune_teacher else 2
        what = "the teacher learns the labels" if given.learn else "learning from the teacher"
        follows = to_come if number == 1 else ""
        with explained(shown, GO_ON):
            shown.on_status(f"run {number} of {count}: {what}, in {given.output}/{given.name}{follows}")
            trained(given, world, shown, folder, texts, labels if given.learn else None, judging=False)

    config = sequence.taught(config, world, first, check)
    sequence.check(config)
    folder = Path(config.output) / str(config.name)
    with explained(shown, lambda: "" if (folder / "result.json").is_file() else GO_ON):
        shown.on_status(f"run {count} of {count}: learning the labels, in {folder}")
        return trained(config, world, shown, None, texts, labels)


@contextmanager
def explained(shown: Callback, how: str | Callable[[], str]) -> Iterator[None]:
    """Says how to go on if a signal arrives outside the steps, which say it themselves."""
    try:
        yield
    except Interrupted:
        raise
    except KeyboardInterrupt as error:
        if text := how if isinstance(how, str) else how():
            shown.on_interrupt(text)
        raise Interrupted(128 + signal.SIGINT) from error


def _without(table: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name not in {*names}}


def trained(
    config: TrainConfig,
    world: World,
    shown: Callback,
    resume: Path | None,
    texts: Sequence[str] | None,
    labels: Sequence[Any] | None,
    left_out: npt.NDArray[np.int64] | None = None,
    judging: bool = True,
) -> RunResult:
    """Trains one run after the other: that of the configuration and, if all its labels teach, one for each fold of
    these to judge it; see ``train``. For ``left_out`` and ``judging`` see ``data.open_data``."""

    def without(folder: Path, rows: npt.NDArray[np.int64], quiet: folds.Quiet) -> Encodes:
        def apart(given: TrainConfig, begun: Path | None, shown: Callback) -> object:
            with closing(Callbacks([LOGGERS.get("jsonl")(), shown])) as watching:
                return trained(given, World(), watching, begun, texts, labels if given.learn else None, rows)

        def before(given: TrainConfig, begun: Path | None) -> object:
            return apart(given, begun, quiet.part(1 if given.learn else 2, 3))

        begun = folder if list_checkpoints(folder) else None
        changes: dict[str, Any] = {
            "output": str(folder.parent),
            "name": folder.name,
            "judges": (),
            "judged_queries": None,
            "data": None,
            "against": None,
            "options": _without(config.options, config.suites),
            "tune_teacher": False,
        }
        # The values that were given name the judges too, which do not judge the encoder of a fold.
        given = _without(config.given or {}, ("judges", "judged_queries", "data", "against", "tune_teacher"))
        given["options"] = _without(given.get("options", {}), config.suites)
        if config.tune_teacher:
            base = sequence.taught_without(config, folder, before)
            changes["model"] = given["model"] = base
        own = resumed_config(folder) if begun else config.replace(**changes, given=given)
        apart(own, begun, quiet.part(3, 3) if config.tune_teacher else quiet)
        return Encoder(folder / "best", device=config.device)

    with ExitStack() as lock:
        if resume is None:
            run = prepare(config, world, None, shown.on_progress, texts, labels, left_out, judging)
            trainer = Trainer(run, world, shown, first=not judging)
        else:
            checkpoint = lock.enter_context(outputs.opened(resume, world))
            run = prepare(config, world, checkpoint.run, shown.on_progress, texts, labels, left_out, judging)
            if len(run.batches) < checkpoint.step:
                raise InputError(
                    f"--max-steps: {len(run.batches)} is less than the {checkpoint.step} steps already done; raise it"
                )
            where, remedy = f"--resume {resume}", "start a new run"
            if not judging:
                where, remedy = str(checkpoint.run), "remove this folder, or give the command another --name"
            check_same(checkpoint.state["data"], run.data, where, remedy)
            outputs.load_state(checkpoint, run, world.rank)
            trainer = Trainer(run, world, shown, checkpoint, first=not judging)
        with trainer.trained(), explained(shown, lambda: folds.stopped(run.folder) if judging else GO_ON):
            return trainer.result(lambda judge: folds.judged_by_fold(judge, run.labelled, run.folder, without, shown))


class Trainer:
    """The training loop of a run from ``prepare``, whose state comes from ``resumed``, if it is resumed.

    ``first`` says whether further runs of a sequence follow, which ``cse train --resume`` of this one would not train.
    """

    def __init__(
        self,
        run: Run,
        world: World,
        callback: Callback,
        resumed: outputs.Checkpoint | None = None,
        first: bool = False,
    ) -> None:
        self.first = first
        self.prepared, self.world, self.callback, self.resumed = run, world, callback, resumed
        self.state, self.settings, self.steps = run.state, run.settings, len(run.batches)
        optimisation, output = run.settings.optimisation, run.settings.output
        self.buffer = MetricBuffer()
        self.began = 0.0  # when training would have begun without evaluations and interruptions, by perf_counter
        norm = optimisation.max_grad_norm
        self.step: Callable[[Sequence[Batch], float], dict[str, Any]] = lambda batches, rate: training_step(
            self.state, batches, run.forward, rate, norm, world
        )
        graphs = optimisation.graphs
        if graphs is None:  # with several ranks or chunks, steps cannot be recorded
            graphs = self.steps >= WORTH_RECORDING and world.size == 1 and optimisation.chunk_size is None
        recorder = recorder_of(run.device) if graphs else None
        if recorder or optimisation.graphs:
            self.step = RecordedStep(self.state, run.forward, norm, recorder, callback.on_warning, world)
        self.slow = SlowSteps() if run.device == "cpu" else None
        self.kept = output.keep_checkpoints if output.save_every else 1
        self.saved = self.last = -1  # steps of the latest checkpoint and of last/

    def run(self) -> RunResult:
        """Trains to the last step and returns the result, for which no further encoders are trained."""
        with self.trained():
            return self.result()

    @contextmanager
    def trained(self) -> Iterator[None]:
        """Trains to the last step. A signal that arrives during it is raised after the context, or, if the verdict
        needs further encoders, before it."""
        run, state, settings = self.prepared, self.state, self.settings
        tokenizer = state.encoder.tokenizer
        with (
            outputs.run_folder(run, self.world) as folder,
            StopRequest() as stop,
            Prefetcher(
                run.batches,
                tokenizer,
                settings.data.max_length,
                run.tokens,
                run.device,
                settings.optimisation.compile,
            ) as batches,
        ):
            self.start(folder)
            state.train()
            self.callback.on_status("training")
            self.began = time.perf_counter() - state.seconds
            agreement = Agreement(self.world, stop, state.step)
            if self.resumed and self.out_of_patience():  # the run had ended, unless patience has been raised
                self.steps = state.step
            if self.resumed and state.step < self.steps and self.world.is_main and (folder / folds.FOLDS).is_dir():
                remove_folder(folder / folds.FOLDS)  # of encoders with fewer steps
            while state.step < self.steps:
                step = state.step
                rate = run.schedule.at(step, self.steps)
                began = time.perf_counter()
                before = {**state.counters(), "generators": generator_states(run.device)}
                with failures(state.step, settings):
                    batch = batches.get(step)
                    metrics = self.step(batch, rate)
                state.count(batch, time.perf_counter() - self.began)
                self.buffer.append(state.record(batch, rate, metrics), [part.rows for part in batch], before)
                self.callback.on_step_end(state.step, self.steps)
                if self.slow and (note := self.slow.update(time.perf_counter() - began)):
                    self.callback.on_warning(note)

                with failures(state.step, settings):
                    evaluation_due = self.is_due(settings.evaluation.eval_every)
                    if evaluation_due or self.is_due(settings.output.log_every):
                        self.write_log()
                    if evaluation_due:
                        self.began += self.evaluate()
                    # Ranks exchange signals after each evaluation, because evaluations may take long.
                    number = agreement.signal(state.step, now=evaluation_due)
                    if evaluation_due and self.out_of_patience():
                        self.steps = state.step
                    if state.step < self.steps:
                        if number or self.is_due(settings.output.save_every):
                            self.checkpoint()
                        elif evaluation_due and self.saved < 0:
                            # best/ may now hold the result of training, so the run must be resumable.
                            self.save_if_possible()
                        if number:
                            self.save_last()
                            self.callback.on_interrupt(
                                f"stopped at step {state.step} of {self.steps}; {folder / 'last'} holds the encoder of "
                                f"that step; {self.how_to_resume(folder)}"
                            )
                            raise Interrupted(128 + number)
            with failures(state.step, settings):
                if self.saved != state.step:  # so that the run can be extended
                    self.save_if_possible()
                self.save_last()
        if stop.number and run.judge.needs_folds(state.selector):
            self.callback.on_interrupt(folds.stopped(folder))
            raise Interrupted(128 + stop.number)
        yield
        if stop.number:  # received during the last step
            signal.raise_signal(stop.number)

    def how_to_resume(self, folder: Path) -> str:
        if self.first:
            return GO_ON
        return f"resume with: {resuming(folder)}"

    def is_due(self, every: int) -> bool:
        """Returns whether the current step is a multiple of ``every`` (0: never), or the last step."""
        return self.state.step == self.steps or bool(every and self.state.step % every == 0)

    def start(self, folder: Path) -> None:
        """Writes the files that describe the run. Restores best/ if the run is resumed, else evaluates the encoder."""
        run, state = self.prepared, self.state
        if self.resumed is not None and find_checkpoint(folder).name == self.resumed.folder.name:
            self.saved = state.step
            if self.world.is_main:  # a killed process may have left earlier checkpoints
                outputs.remove_others(find_checkpoint(folder), self.kept)
        if self.world.is_main:
            if self.resumed is not None:
                outputs.restore_best(self.resumed, folder)
            outputs.describe(run)
            run.index.save(folder)
        self.callback.on_train_begin(run)
        if state.step == 0:
            self.world.agreed(lambda: str(self.evaluate()))  # an error of the first rank ends all ranks

    def write_log(self) -> None:
        """Passes the metrics of the steps since the last call to the callbacks."""
        records = self.buffer.read()
        fault = records[-1] if records and "finite" in records[-1] else {}
        rows, before = fault.pop("rows", None), fault.pop("before", None)
        if records:
            self.callback.on_log(records)
        if note := self.state.saturation.update(records):
            self.callback.on_warning(note)
        if fault:
            self.not_finite(fault, np.concatenate(rows), before)

    def not_finite(self, record: dict[str, Any], rows: npt.NDArray[np.int64], before: dict[str, Any]) -> NoReturn:
        """Saves the state before the first step whose loss or gradient was not finite; raises ``RunError``."""
        run, state = self.prepared, self.state
        restore_generators(before.pop("generators"), run.device)
        vars(state).update(before)
        first = ", ".join(map(str, rows[:5].tolist()))
        text = f"the loss or its gradient is not finite at step {record['step']} (first rows of the batch: {first}); "
        remedy = f"lower --lr, which is now {record['lr']:g}"
        with run.saved_weights():
            wrecked, fault = (
                self.world.agreed(partial(state.selector.scorer.fault, texts))
                for texts in (state.selector.scorer.sample, run.batches.corpus.take(rows))
            )
        if not state.step:
            model = run.settings.model.model
            remedy = fault or f"the weights are still the same as in {model}; use another model or --temperature"
        elif wrecked:
            text += f"the weights of step {state.step} give embeddings that are not finite, and are not saved; "
        else:
            # Buffers of methods, such as a queue of embeddings, and averages hold what this and later steps computed.
            if self.saved != state.step and not state.keeps_more:
                self.save_if_possible()
            self.save_last()
            last = run.folder / "last"
            remedy = fault or f"to train it further at a lower rate: --model {last} --lr {record['lr'] / 2:g}"
            text += f"{last} holds the encoder of step {state.step}; "
        raise RunError(text + remedy)

    def evaluate(self) -> float:
        """Evaluates the encoder, saves it as best/ if it is selected, and returns the elapsed seconds."""
        run, state = self.prepared, self.state
        if not self.world.is_main:
            return 0.0
        began = time.perf_counter()
        self.callback.on_status("evaluating")
        usual, keep = run.settings.optimisation.merge_with_base, False
        for share in state.selector.shares(state.step, usual):
            with run.saved_weights(share):
                _, keep = state.selector.score(state.step, share)
            if keep:
                break
        with run.saved_weights(state.selector.share if keep else usual):
            self.callback.on_evaluate(state.step, state.selector.records[-1])
            if keep:
                outputs.save(run, "best")
                if state.step == 0 and run.judge.evaluations:
                    run.judge.begin(outputs.load(run, run.judge.against or run.folder / outputs.BEST))
                    run.judge.write(run.folder)
        return time.perf_counter() - began

    def out_of_patience(self) -> bool:
        """Returns whether none of the last ``patience`` evaluations selected an encoder; only rank 0 evaluates."""
        patience = self.settings.evaluation.patience
        return patience is not None and self.world.highest(self.state.selector.misses)[0] >= patience

    def checkpoint(self) -> None:
        """Writes the log up to this step, then saves the state, from which the run can be resumed."""
        self.write_log()
        run, step = self.prepared, self.state.step
        try:
            outputs.save_checkpoint(run, self.kept, self.world)
        except OSError as error:
            text = f"{sentence(error)}; the checkpoint of step {step} could not be written"
            try:
                self.save_last()
                text += f", {run.folder / 'last'} holds the encoder of that step"
            except OSError:
                text += ", nor could last/"
            raise RunError(f"{text}; the files of earlier steps were kept") from None
        self.saved = step

    def save_last(self) -> None:
        """Saves the encoder of the current step as last/, unless it is already saved there."""
        if self.world.is_main and self.last != self.state.step:
            with self.prepared.saved_weights():
                outputs.save(self.prepared, "last")
        self.last = self.state.step

    def save_if_possible(self) -> None:
        """Saves the state; if this fails and ``save_every`` is 0, only calls ``on_warning``."""
        try:
            self.checkpoint()
        except RunError as error:
            if self.settings.output.save_every:
                raise
            self.saved = self.state.step
            self.callback.on_warning(str(error))

    def result(self, by_fold: ByFold | None = None) -> RunResult:
        """Returns the result, and writes it to result.json; ``by_fold`` trains further encoders if these judge."""
        run, state, selector = self.prepared, self.state, self.state.selector
        if not self.world.is_main:
            return RunResult(run.folder, state.step, 0, state.seconds, 0, {}, {}, {}, [], {}, None, [], {})
        best = None
        if run.labelled or run.evaluation.tasks or (run.judge.evaluations and run.judge.compares(selector)):
            self.callback.on_status("evaluating best/")
            best = outputs.load_best(run)
        verdict = run.judge.verdict(selector, best, by_fold)
        fitted = classify(run, run.labelled, best) if run.labelled and best else None
        outputs.save_card(run, verdict, fitted)
        sts = run.evaluation.scores(best, self.callback.on_warning) if best else {}
        result = RunResult(
            folder=run.folder,
            steps=state.step,
            synthetic_steps=state.viewed["synthetic"],
            seconds=round(state.seconds, 2),
            best_step=selector.best_step,
            before=selector.records[0],
            after=selector.records[-1],
            best=selector.best_record,
            notes=[*remarks.notes(selector), *([state.saturation.note] if state.saturation.note else [])],
            verdict=verdict.to_dict(),
            classifier=None if fitted is None else record(fitted),
            neighbours=remarks.neighbours(selector),
            sts=sts,
        )
        write_text(run.folder / "result.json", dumps(result.to_dict(), indent=2) + "\n")
        if (run.folder / folds.FOLDS).is_dir():
            remove_folder(run.folder / folds.FOLDS)
        self.callback.on_train_end(result)
        return result
