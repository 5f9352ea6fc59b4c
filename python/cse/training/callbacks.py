"""Callbacks of a training run. This module does not import torch, so that the command line starts quickly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import shortened
from ..progress import ProgressDisplay, duration

if TYPE_CHECKING:
    from ..augment.base import Example
    from .run import Run


class Callback:
    """Base class of callbacks that observe a training run: progress displays, loggers, and your own callbacks.

    All methods do nothing by default. With several processes, only the process of rank 0 calls them.
    Loggers are callbacks that ``cse train --logger NAME`` finds by name; see ``cse.training.loggers.LOGGERS``.
    """

    def on_train_begin(self, run: Run) -> None:
        """Called before the first evaluation, after the folder of the run has been created.

        Args:
            run: The run. Its attributes include ``folder``, ``settings``, ``facts`` (descriptions of device, model,
                loss and so on), ``examples`` (sentences with their augmented forms), and ``state``. ``run.state.step``
                is above 0 if the run is resumed. ``run.state.encoder`` and ``run.state.optimizer`` are the objects in
                use, not copies; training changes them in place.
        """

    def on_status(self, text: str) -> None:
        """Called before a time-consuming phase of the run; ``text`` is the name of the phase."""

    def on_progress(self, text: str, done: int, total: int, unit: str) -> None:
        """Called repeatedly during a phase before training, and at its end with ``done`` equal to ``total``.

        Args:
            text: Name of the phase.
            done: Number of units done.
            total: Total number of units; 0 while this is not known.
            unit: ``bytes`` or ``sentences``.
        """

    def on_warning(self, text: str) -> None:
        """Called with a warning: the run continues, but probably not as intended."""

    def on_step_end(self, step: int, steps: int) -> None:
        """Called after each step.

        Args:
            step: Number of steps done.
            steps: Number of steps of the run.
        """

    def on_log(self, records: Sequence[dict[str, Any]]) -> None:
        """Called every ``log_every`` steps, and before an evaluation or a checkpoint.

        It is not called after every step, because reading the metrics waits for the device.

        Args:
            records: One record for each step since the last call: ``step``, ``loss``, ``lr``, similarities and so on.
        """

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """Called after each evaluation with the number of steps done and the scores by name.

        During the call, the encoder has the evaluated weights, which are then saved as best/ if they are selected.
        """

    def on_interrupt(self, why: str) -> None:
        """Called after SIGINT, SIGTERM or SIGHUP, once the encoder has been saved.

        ``why`` names the step and the folder, and contains the command that resumes the run.
        """

    def on_train_end(self, result: Any) -> None:
        """Called with the ``RunResult`` after all files have been saved."""

    def close(self) -> None:
        """Called once at the end, even after an error."""


class Callbacks(Callback):
    """A callback that forwards each call to several callbacks, in the given order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._all = list(callbacks)


def _forwarded(name: str) -> Callable[..., None]:
    def call(self: Callbacks, *args: Any, **keywords: Any) -> None:
        for callback in self._all:
            getattr(callback, name)(*args, **keywords)

    return call


for _name in [name for name in vars(Callback) if not name.startswith("_")]:
    setattr(Callbacks, _name, _forwarded(_name))


def score_text(record: dict[str, Any]) -> str:
    """Returns the scores of an evaluation as text."""
    parts = []
    if "spearman" in record:
        parts.append(f"Spearman {record['spearman']:.2f}")
    if "mrr" in record:
        parts.append(f"MRR {record['mrr']:.4f} +- {record['mrr_se']:.4f}")
    if "alignment" in record:
        # + 0.0 turns -0.0 into 0.0.
        parts += [f"{name} {round(record[name], 3) + 0.0:.3f}" for name in ("alignment", "uniformity")]
    if "cos_syn" in record:
        parts.append(f"cosine to synthetic negatives {record['cos_syn']:.3f}")
    return ", ".join(parts) or "not scored"


def meanings(record: dict[str, Any]) -> str:
    """Returns what the scores of an evaluation mean, other than Spearman's correlation; "" if there are no others."""
    halves = "spearman" not in record
    parts = {
        "mrr": "MRR, the mean reciprocal rank with which the halves of held-out sentences find each other (1: first)",
        "alignment": f"alignment, the mean squared distance of {'the halves' if halves else 'pairs with high scores'}",
        "uniformity": "uniformity, which is lower if embeddings are more spread out",
    }
    listed = [text for name, text in parts.items() if name in record]
    return f"scores: {'; '.join(listed)}" if listed else ""


def header(facts: dict[str, str], verbose: bool = False) -> list[str]:
    """Returns the lines that describe a run before training, from ``Run.facts``; without ``verbose`` the main ones:
    first what was named, then the recipe."""
    if not verbose:
        names = ("corpus", "columns", "labels", "model", "recipe", "steps", "device", "index", "warning")
        facts = {name: facts[name] for name in names if name in facts}
    return [f"{name:>9}  {value}" for name, value in facts.items()]


def by_sentence(examples: Sequence[Example]) -> list[list[Example]]:
    """Returns the examples of a run in one list for each sentence, in the order of the sentences."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.text, []).append(example)
    return list(groups.values())


class ProgressCallback(Callback):
    """Shows a progress bar, warnings and scores of a run: in a notebook below the cell, else on standard error.

    If the output is neither a notebook nor a terminal, lines of progress are printed at least 15 seconds apart.

    Args:
        verbose: Whether all of ``run.facts`` and ``run.examples`` are printed before training. Default: only corpus,
            labels, model, recipe, steps, device, warnings, and the first example.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.display = ProgressDisplay()
        self._training = False
        self._loss = self._score = ""
        self._further = 0  # encoders that are trained after this one, to judge it
        self._again = 0.0  # seconds of the runs before each of them

    def on_train_begin(self, run: Run) -> None:
        """Prints a description of the run, then the texts of one or all examples, each cut off at 120 characters."""
        self._begin(run)
        for line in header(run.facts, self.verbose):
            self.display.print(line)
        for examples in by_sentence(run.examples)[: None if self.verbose else 1]:
            texts = [f"{example.method}: {shortened(example.augmented)}" for example in examples]
            self.display.print("\n           ".join([f"        -  {shortened(examples[0].text)}", *texts]))

    def _begin(self, run: Run) -> None:
        self._further, self._again = run.judge.further, run.again

    def on_status(self, text: str) -> None:
        if not self._training:
            self.display.print(f"{text} ...")

    def on_progress(self, text: str, done: int, total: int, unit: str) -> None:
        """Shows a bar for the phase, and removes it at the end of the phase."""
        self.display(text, done, total, unit)

    def on_warning(self, text: str) -> None:
        self.display.print(f"Warning: {text}")

    def on_step_end(self, step: int, steps: int) -> None:
        """Updates the bar, which also shows the rate and the last score.

        At step 4 of a run of more than 20 steps, the estimated remaining time is also printed.
        """
        self._training = True
        self.display("training", step, steps, "steps", self._loss, self._score)
        if step == 4 and steps > 20 and (left := self.display.seconds_left(step, steps)) is not None:
            each = left / (steps - 4)
            more = ""
            if self._further:
                total = left + self._further * (self._again + steps * each)
                more = f"; {duration(total)} with the {self._further} encoders that are trained to judge it"
            self.display.print(f"{steps:,} steps, about {duration(left)} left ({each:.2f} s per step){more}")

    def on_log(self, records: Sequence[dict[str, Any]]) -> None:
        """Stores the latest loss; the next update of the progress bar shows it."""
        self._loss = f"loss {records[-1]['loss']:.3g}"

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """Prints the scores, and shows the main one next to the bar."""
        self._score = score_text(record).partition(" +-")[0].partition(",")[0]
        if not step and (text := meanings(record)):
            self.display.print(text)
        self.display.print(f"{f'step {step:,}' if step else 'before training'}: {score_text(record)}")

    def on_interrupt(self, why: str) -> None:
        """Removes the bar, and prints ``why``: the step, the folder of the saved encoder, and how to resume."""
        self.close()
        self.display.print(why)

    def on_train_end(self, result: Any) -> None:
        """Prints the notes and the verdict of the result, and the folder of the selected encoder."""
        from ..evaluation.verdict import lines

        self.close()
        for note in (*result.notes, *lines(result.verdict)):
            self.display.print(note)
        self.display.print(f"{result.folder / 'best'}")

    def close(self) -> None:
        """Removes the bar; another run of a sequence may follow."""
        self._training = False
        self.display.close()
