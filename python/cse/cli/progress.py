"""Shows the progress of long operations and of training runs, on standard error.

On a terminal, progress is shown as a bar, otherwise as a line at most every 15 seconds.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import Progress
from ..background import in_thread
from ..errors import visible
from ..training.callbacks import LINE_SECONDS, Callback, header, score_text
from . import printing

if TYPE_CHECKING:
    from ..training.run import Run

T = TypeVar("T")


class ProgressDisplay:
    """Displays the progress of one operation on standard error, with an estimate of the remaining time.

    Args:
        label: Name of the operation.
        unit: Unit of the progress; ``bytes`` are shown in MB.
        total: Total number of units; 0 if it is not known yet.
    """

    def __init__(self, label: str, unit: str, total: int = 0) -> None:
        self.label, self.unit, self.total = label, unit, total
        self.done = 0
        self._first: tuple[float, int] | None = None
        self._shown = time.monotonic()
        self._bar: Any = None
        self._task: Any = None
        if sys.stderr.isatty():
            self._start_bar()

    def _start_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        count = DownloadColumn() if self.unit == "bytes" else MofNCompleteColumn()
        columns = (TextColumn(self.label), BarColumn(), count, TextColumn("{task.fields[text]}"), TimeRemainingColumn())
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(self.label, total=self.total or None, text="")
        self._bar.start()

    def update(self, done: int, total: int | None = None, text: str = "") -> None:
        """Sets the number of units done and, if given, the total; ``text`` is shown next to the bar or in the line."""
        self.done, now = done, time.monotonic()
        self.total = total if total is not None else self.total
        if self._first is None:
            self._first = (now, done)  # the first unit often includes a warm-up, so the estimate starts after it
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=self.total or None, text=visible(text))
        elif now - self._shown >= LINE_SECONDS:
            self._shown = now
            printing.echo(f"{self.label}: {self._amount()}{f', {text}' if text else ''}{self._left(now)}", err=True)

    def advance(self, more: int) -> None:
        """Increases the number of units done by ``more``."""
        self.update(self.done + more)

    def seconds_left(self, now: float) -> float | None:
        """Returns the estimated seconds left, from the rate since the first update; None if there is no estimate."""
        if self._first is None or not self.total or self.done <= self._first[1]:
            return None
        started, before = self._first
        return (now - started) * (self.total - self.done) / (self.done - before)

    def _left(self, now: float) -> str:
        left = self.seconds_left(now)
        return "" if left is None else f", about {duration(left)} left"

    def _amount(self) -> str:
        if self.unit == "bytes":
            return f"{self.done / 1e6:,.0f}{f' of {self.total / 1e6:,.0f}' if self.total else ''} MB"
        return f"{self.done:,}{f' of {self.total:,}' if self.total else ''} {self.unit}"

    def print(self, text: str) -> None:
        """Prints a line of text, above the bar if there is one."""
        if self._bar is not None:
            self._bar.console.print(visible(text), highlight=False, markup=False)
        else:
            printing.say(text)

    def close(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class PhaseDisplay:
    """Displays the progress of successive phases; a phase ends when all its units are done."""

    def __init__(self) -> None:
        self._display: ProgressDisplay | None = None

    def __call__(self, text: str, done: int, total: int, unit: str) -> None:
        """Shows the progress of the phase ``text``; see ``Callback.on_progress``."""
        if self._display is None:
            self._display = ProgressDisplay(text, unit, total)
        self._display.update(done, total)
        if total and done == total:
            self.close()

    def close(self) -> None:
        """Removes the bar."""
        if self._display is not None:
            self._display.close()
            self._display = None


@contextmanager
def counting(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Context manager for the progress of a loop; yields a function to call with the number of units just done."""
    display = ProgressDisplay(label, unit, total)
    try:
        yield display.advance
    finally:
        display.close()


@contextmanager
def progress_of(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager for the progress of a call; yields a function to call with the units done and the total.

    Nothing is shown before the first call of that function.
    """
    displays: list[ProgressDisplay] = []

    def show(done: int, total: int) -> None:
        if not displays:
            displays.append(ProgressDisplay(label, unit, total))
        displays[0].update(done, total)

    try:
        yield show
    finally:
        for display in displays:
            display.close()


def in_background(label: str, work: Callable[[Progress], T]) -> T:
    """Runs a call into the Rust core with ``cse.background.in_thread``, and shows its progress in MB."""
    with progress_of(label, "bytes") as show:  # which the core does not call for short calls
        return in_thread(work, show)


def duration(seconds: float) -> str:
    """Formats a duration, for example as 12 s, 3 min 5 s or 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class ConsoleCallback(Callback):
    """Shows the progress of a training run on standard error.

    Args:
        verbose: Whether all descriptions and examples are printed before training; see ``header``.
    """

    def __init__(self, verbose: bool = False) -> None:
        self.verbose = verbose
        self.display: ProgressDisplay | None = None
        self.phases = PhaseDisplay()
        self.loss = ""

    def on_train_begin(self, run: Run) -> None:
        """Prints a description of the run, one fact per line, then examples of augmentations."""
        for line in header(run.facts, self.verbose):
            printing.say(line)
        printing.print_examples(run.examples[: None if self.verbose else 1])

    def on_status(self, text: str) -> None:
        """Prints the name of the phase, unless the progress bar of the training is shown."""
        if self.display is None:
            printing.say(f"{text} ...")

    def on_progress(self, text: str, done: int, total: int, unit: str) -> None:
        """Shows a progress bar for the phase, and removes it at the end of the phase."""
        self.phases(text, done, total, unit)

    def on_warning(self, text: str) -> None:
        """Prints the warning."""
        self._print(f"Warning: {text}")

    def on_step_end(self, step: int, steps: int) -> None:
        """Updates the bar; at step 4 of a run of more than 20 steps, also prints the estimated remaining time."""
        if self.display is None:
            self.display = ProgressDisplay("training", "steps", steps)
        self.display.update(step, text=self.loss)
        if step == 4 and steps > 20:
            left = self.display.seconds_left(time.monotonic())
            if left is not None:
                self.display.print(
                    f"{steps:,} steps, about {duration(left)} left ({left / (steps - 4):.2f} s per step)"
                )

    def on_log(self, records: Sequence[dict[str, Any]]) -> None:
        """Stores the latest loss; the next update of the progress bar shows it."""
        self.loss = f"loss {records[-1]['loss']:.3g}"

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """Prints the scores."""
        self._print(f"{f'step {step:,}' if step else 'before training'}: {score_text(record)}")

    def _print(self, text: str) -> None:
        """Prints a line, above the progress bar if there is one."""
        (printing.say if self.display is None else self.display.print)(text)

    def on_interrupt(self, why: str) -> None:
        """Removes the bar, and prints ``why``: the step, the folder of the saved encoder, and how to resume."""
        self.close()
        printing.say(why)

    def on_train_end(self, result: Any) -> None:
        """Removes the bar; the command prints the result."""
        self.close()

    def close(self) -> None:
        """Removes the progress bar."""
        self.phases.close()
        if self.display is not None:
            self.display.close()
            self.display = None
