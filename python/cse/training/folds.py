"""Encoders that learn from all labels but a fold's, by which the encoder that learns from all is judged.

An encoder that was trained on labels cannot be judged by them. With few labels, none are held out (``CrossFitted``):
for each fold, a run in the folder ``folds`` of the run trains an encoder without the rows of the fold, with the same
settings. Its results for the fold are stored there, and the run is removed; a stopped run continues at its fold.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .. import io
from ..evaluation.base import Encodes, Sample
from ..evaluation.labels import CrossFitted
from .callbacks import Callback

FOLDS = "folds"

Train = Callable[[Path, npt.NDArray[np.int64], Callback], Encodes]
"""Trains an encoder in a folder without some rows, or goes on with it, and returns it."""


class Quiet(Callback):
    """Shows the steps of a fold, and names the run that is to be resumed if it is stopped."""

    def __init__(self, shown: Callback, run: Path, name: str) -> None:
        self.shown, self.run, self.name = shown, run, name

    def on_step_end(self, step: int, steps: int) -> None:
        self.shown.on_progress(self.name, step, steps, "steps")

    def on_interrupt(self, why: str) -> None:
        self.shown.on_interrupt(stopped(self.run))


def stopped(run: Path) -> str:
    """Returns what is said if a run is stopped before its encoder is judged."""
    return f"stopped before the verdict; {run / 'best'} holds the encoder; resume with: cse train --resume {run}"


def judged_by_fold(crossed: CrossFitted, run: Path, train: Train, callback: Callback) -> list[list[Sample]]:
    """Returns the samples of each fold for the encoder that is trained without it."""
    samples = []
    for number, (fold, rows) in enumerate(zip(crossed.folds, crossed.rows, strict=True), 1):
        folder = run / FOLDS / str(number)
        stored = folder.with_suffix(".json")
        if not stored.is_file():
            quiet = Quiet(callback, run, f"training encoder {number} of {len(crossed.folds)} to judge")
            found = fold(train(folder, rows, quiet)).samples
            io.write_text(stored, io.dumps({each.task: each.values.tolist() for each in found}) + "\n")
            io.remove_folder(folder)
        samples.append(read_samples(stored))
    return samples


def read_samples(path: Path) -> list[Sample]:
    stored = io.read_json(path, dict[str, list[float]])
    return [Sample(task, np.array(values), unit="rows") for task, values in stored.items()]
