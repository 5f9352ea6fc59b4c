"""The display of a training run on standard error."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..training.callbacks import Callback, score_text
from . import printing
from .progress import PhaseDisplay, ProgressDisplay, duration

if TYPE_CHECKING:
    from ..training.run import Run

__all__ = ["ConsoleCallback"]


class ConsoleCallback(Callback):
    """Shows the progress of a training run on standard error."""

    def __init__(self) -> None:
        self.display: ProgressDisplay | None = None
        self.phases = PhaseDisplay()
        self.loss = ""

    def on_train_begin(self, run: Run) -> None:
        """Prints a description of the run, one fact per line, then examples of augmentations."""
        for name, value in run.facts.items():
            printing.say(f"{name:>9}  {value}")
        printing.print_examples(run.examples)

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
