"""Shows the progress of long operations: a bar on a terminal or in a notebook, else lines of text on standard error."""

from __future__ import annotations

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from textwrap import fill
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .background import in_thread
from .errors import visible

if TYPE_CHECKING:
    from ._core import Progress

T = TypeVar("T")

LINE_SECONDS = 15.0
"""Minimum number of seconds between lines of progress, if the output is neither a notebook nor a terminal."""


class ProgressDisplay:
    """Displays the progress of successive phases; a phase ends when all its units are done."""

    def __init__(self) -> None:
        self.notebook = "ipykernel" in sys.modules
        self._bar: Any = None
        self._label: str | None = None
        self._shown = 0.0
        self._first: tuple[float, int] | None = None

    def __call__(self, label: str, done: int, total: int, unit: str, text: str = "", live: str = "") -> None:
        """Shows the progress of the phase ``label``, with ``text``; ``bytes`` are shown in MB.

        ``total`` is 0 while it is not known. ``live`` is shown next to a bar only, after ``text`` and units a second.
        """
        now = time.monotonic()
        if self._label != label:
            self.close()
            self._label, self._shown, self._first = label, now, None
        if self._first is None and done:
            self._first = now, done  # the first unit often includes a warm-up, so the estimate starts after it
        if self.notebook or sys.stderr.isatty():
            if self._bar is None:
                self._bar = _bar(label, unit, self.notebook)
            if live and self._first is not None and done > self._first[1]:
                live = f"{(done - self._first[1]) / max(now - self._first[0], 1e-9):.3g} {unit}/s, {live}"
            shown = ", ".join(filter(None, (text, live)))
            self._bar.update(self._bar.task_ids[0], completed=done, total=total or None, text=visible(shown))
        elif now - self._shown >= LINE_SECONDS:
            self._shown = now
            size, of = (f"{number / 1e6:,.0f}" if unit == "bytes" else f"{number:,}" for number in (done, total))
            amount = f"{size}{f' of {of}' if total else ''} {'MB' if unit == 'bytes' else unit}"
            left = self.seconds_left(done, total)
            about = "" if left is None else f", about {duration(left)} left"
            self.print(f"{label}: {amount}{f', {text}' if text else ''}{about}")
        if total and done == total:
            self.close()

    def seconds_left(self, done: int, total: int) -> float | None:
        if self._first is None or not total or done <= self._first[1]:
            return None
        began, before = self._first
        return (time.monotonic() - began) * (total - done) / (done - before)

    def print(self, text: str) -> None:
        text = visible(text)
        if not self.notebook and sys.stderr.isatty():
            indent = " " * len(re.match(r"( *\S+  )?", text)[0])  # type: ignore[index]  # a label, such as "model  "
            width = shutil.get_terminal_size().columns
            text = fill(text, width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)
        if self._bar is not None:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)
        else:
            click.echo(text, err=not self.notebook)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._label = None


def _bar(label: str, unit: str, notebook: bool) -> Any:
    from rich import progress
    from rich.console import Console
    from rich.table import Column

    bar = progress.Progress(
        progress.TextColumn("{task.description}", markup=False),
        progress.BarColumn(bar_width=None, table_column=Column(ratio=1)),
        progress.DownloadColumn() if unit == "bytes" else progress.MofNCompleteColumn(),
        progress.TextColumn("{task.fields[text]}", markup=False),
        progress.TimeRemainingColumn(),
        console=Console(stderr=not notebook),
        transient=not notebook,
        expand=True,
    )
    bar.add_task(label, total=None, text="")
    bar.start()
    return bar


@contextmanager
def progress_of(label: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """Context manager for the progress of a call; yields a function to call with the units done and the total."""
    with closing(ProgressDisplay()) as display:
        yield lambda done, total: display(label, done, total, unit)


@contextmanager
def counting(label: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """Context manager for the progress of a loop; yields a function to call with the number of units just done."""
    done = 0
    with progress_of(label, unit) as show:

        def advance(more: int) -> None:
            nonlocal done
            done += more
            show(done, total)

        show(0, total)
        yield advance


def in_background(label: str, work: Callable[[Progress], T]) -> T:
    """Runs a call into the Rust core with ``cse.background.in_thread``, and shows its progress in MB."""
    with progress_of(label, "bytes") as show:  # which the core does not call for short calls
        return in_thread(work, show)


def duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
