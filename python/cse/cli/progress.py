"""The progress of commands: that of calls into the Rust core, and that of training runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from .._core import Progress
from ..background import in_thread
from ..progress import ProgressDisplay, counting, duration, progress_of
from ..training.callbacks import ProgressCallback, header
from . import printing

if TYPE_CHECKING:
    from ..training.run import Run

__all__ = ["ConsoleCallback", "ProgressDisplay", "counting", "duration", "in_background", "progress_of"]

T = TypeVar("T")


def in_background(label: str, work: Callable[[Progress], T]) -> T:
    """Runs a call into the Rust core with ``cse.background.in_thread``, and shows its progress in MB."""
    with progress_of(label, "bytes") as show:  # which the core does not call for short calls
        return in_thread(work, show)


class ConsoleCallback(ProgressCallback):
    """Shows the progress of a run; examples have marked words, and the command prints the result."""

    def on_train_begin(self, run: Run) -> None:
        """Prints a description of the run, one fact per line, then examples of augmentations."""
        for line in header(run.facts, self.verbose):
            printing.say(line)
        printing.print_examples(run.examples[: None if self.verbose else 1])

    def on_train_end(self, result: Any) -> None:
        """Removes the bar."""
        self.close()
