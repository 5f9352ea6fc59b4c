"""What people see: progress on a terminal, quiet plain lines elsewhere, results as text or one JSON object."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .._core import Progress
from ..training.loggers import Reporter, dumps

if TYPE_CHECKING:
    from ..training.loop import RunResult

T = TypeVar("T")

# Elsewhere than on a terminal a line of progress appears this often.
PLAIN_SECONDS = 15.0


def say(text: str = "") -> None:
    """A line for people: on standard error, so that standard output holds results alone."""
    click.echo(text, err=True)


def result(value: dict[str, Any], as_json: bool, lines: list[str]) -> None:
    """The outcome of a command on standard output."""
    click.echo(dumps(value) if as_json else "\n".join(lines))


def in_background(label: str, work: Callable[[Progress], T]) -> T:
    """Runs a call into the Rust core, draws its progress in bytes, and stops it on Ctrl-C."""
    progress = Progress()
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work(progress))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        thread.join(0.3)  # most calls are over before a bar would be drawn
        if thread.is_alive():
            _watch(label, thread, progress)
    except KeyboardInterrupt:
        progress.cancel()
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]


def _watch(label: str, thread: threading.Thread, progress: Progress) -> None:
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bar

        columns = (
            TextColumn(label),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=progress.total or None)
            while thread.is_alive():
                bar.update(task, completed=progress.done, total=progress.total or None)
                thread.join(0.1)
        return
    started = shown = time.monotonic()
    while thread.is_alive():
        thread.join(0.5)
        now = time.monotonic()
        if now - shown >= PLAIN_SECONDS:
            shown = now
            say(f"{label}: {progress.done / 1e6:,.0f} MB{_of(progress, now - started)}")


def _of(progress: Progress, seconds: float) -> str:
    if not progress.total or not progress.done:
        return ""
    left = seconds * (progress.total - progress.done) / progress.done
    return f" of {progress.total / 1e6:,.0f} MB, about {duration(left)} left"


@contextmanager
def counting(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Progress of a loop in Python: yields a function that hears how many more are done."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn(label),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeRemainingColumn(),
        )
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(label, total=total)
            yield lambda more: bar.advance(task, more)
        return
    done, started = 0, time.monotonic()
    shown = started

    def heard(more: int) -> None:
        nonlocal done, shown
        done += more
        now = time.monotonic()
        if now - shown >= PLAIN_SECONDS:
            shown = now
            left = (now - started) * (total - done) / max(done, 1)
            say(f"{label}: {done:,} of {total:,} {unit}, about {duration(left)} left")

    yield heard


def duration(seconds: float) -> str:
    """12 s, 3 min 5 s, 2 h 10 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def span(radius: int, terms: int) -> str:
    """A radius in words."""
    return f"{radius:,} ranks to either side ({min(radius / terms, 1):.1%} of {terms:,} terms)"


def marked(text: str, spans: list[tuple[int, int]], colour: str) -> str:
    """The text with these characters marked: in colour on a terminal, in brackets elsewhere."""
    out, at = [], 0
    for start, end in spans:
        word = text[start:end]
        mark = click.style(word, fg=colour, bold=True) if sys.stderr.isatty() else f"[{word}]"
        out += [text[at:start], mark]
        at = end
    return "".join([*out, text[at:]])


def scores(record: dict[str, Any]) -> str:
    """The scores of an evaluation in one phrase."""
    parts = []
    if "spearman" in record:
        parts.append(f"Spearman {record['spearman']:.2f}")
    if "mrr" in record:
        parts.append(f"MRR {record['mrr']:.4f} +- {record['mrr_se']:.4f}")
    if "alignment" in record:
        parts += [f"alignment {record['alignment']:.3f}", f"uniformity {record['uniformity']:.3f}"]
    if "cos_syn" in record:
        parts.append(f"cosine to synthetic negatives {record['cos_syn']:.3f}")
    return ", ".join(parts) or "not scored"


class ConsoleReporter(Reporter):
    """Tells a run on standard error."""

    def __init__(self) -> None:
        self.total = 0
        self.bar: Any = None
        self.task: Any = None
        self.shown = 0.0
        self.started = 0.0

    def beginning(self, facts: dict[str, Any]) -> None:
        """One line a fact."""
        for name, value in facts.items():
            say(f"{name:>8}  {value}")

    def negatives(self, examples: list[tuple[str, str, Any]]) -> None:
        """Sentence and negative, replaced words marked."""
        say("synthetic negatives of the first sentences, replaced words marked:")
        for text, negative, replaced in examples:
            say(f"       -  {marked(text, [r.span for r in replaced], 'cyan')}")
            say(f"          {marked(negative, [r.new_span for r in replaced], 'yellow')}")

    def note(self, text: str) -> None:
        """A word on what takes time."""
        if self.bar is None:
            say(f"{text} ...")

    def training(self, steps: int, seconds_per_step: float) -> None:
        """The estimate; then a bar on a terminal."""
        self.total = steps
        self.started = self.shown = time.monotonic()
        say(f"training {steps:,} steps, about {duration(steps * seconds_per_step)} ({seconds_per_step:.2f} s a step)")
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self.bar = Bar(
                TextColumn("training"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[loss]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.task = self.bar.add_task("training", total=steps, loss="")
            self.bar.start()

    def stepped(self, step: int, record: dict[str, Any]) -> None:
        """The bar moves, or now and then a line."""
        if self.bar is not None:
            self.bar.update(self.task, completed=step, loss=f"loss {record['loss']:.3g}")
            return
        now = time.monotonic()
        if now - self.shown >= PLAIN_SECONDS:
            self.shown = now
            left = (now - self.started) * (self.total - step) / step
            say(f"step {step:,} of {self.total:,}: loss {record['loss']:.3g}, about {duration(left)} left")

    def evaluated(self, step: int, record: dict[str, Any]) -> None:
        """The scores."""
        text = f"step {step:,}: {scores(record)}" if step else f"before training: {scores(record)}"
        if self.bar is not None:
            self.bar.console.print(text, highlight=False)
        else:
            say(text)

    def close(self) -> None:
        """Takes the bar away."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None

    def stopped(self, why: str) -> None:
        """Interrupted."""
        self.close()
        say(why)

    def ended(self, result: RunResult) -> None:
        """The result itself goes to standard output."""
        self.close()
