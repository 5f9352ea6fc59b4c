"""Encoders that learn from all labels but a fold's, by which the encoder that learns from all is judged.

An encoder that was trained on labels cannot be judged by them. With few labels, none are held out (``CrossFitted``):
for each fold, a run in the folder ``folds`` of the run trains an encoder without the rows of the fold, with the same
settings. Its results for the fold are stored there, with the log-odds of the labels of all its texts
(``cse.classifier``), and the run is removed; a stopped run continues at its fold.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from .. import io
from ..classifier.fitted import Linear
from ..classifier.labelled import Labelled
from ..evaluation.base import Encodes, Sample, embed
from ..evaluation.labels import CrossFitted
from .callbacks import Callback
from .folder.find import resuming

FOLDS = "folds"


class Quiet(Callback):
    """Shows the steps of fold ``number``, from 1, as some of those of all ``count`` folds, so that the time left is
    that of all; and names the run that is to be resumed if it is stopped."""

    def __init__(self, shown: Callback, run: Path, number: int, count: int) -> None:
        self.shown, self.run, self.number, self.count = shown, run, number, count

    def on_step_end(self, step: int, steps: int) -> None:
        done = (self.number - 1) * steps + step
        self.shown.on_progress(f"training {self.count} encoders to judge", done, self.count * steps, "steps")

    def on_interrupt(self, why: str) -> None:
        self.shown.on_interrupt(stopped(self.run))

    def part(self, number: int, count: int) -> Quiet:
        """Returns what shows one of several runs of this fold, ``number``, from 1, of ``count``."""
        return Quiet(self.shown, self.run, (self.number - 1) * count + number, self.count * count)


Train = Callable[[Path, npt.NDArray[np.int64], Quiet], Encodes]
"""Trains an encoder in a folder without some rows, or goes on with it, and returns it."""


def stopped(run: Path) -> str:
    """Returns what is said if a run is stopped before its encoder is judged."""
    return f"stopped before the verdict; {run / 'best'} holds the encoder; resume with: {resuming(run)}"


class Found(TypedDict):
    """What an encoder without a fold found, in ``folds/N.json``."""

    samples: dict[str, list[float]]
    log_odds: list[list[float | None]]
    """None stands for minus infinity: a label that the other folds do not have."""


def judged_by_fold(
    crossed: CrossFitted, labelled: Labelled | None, run: Path, train: Train, callback: Callback
) -> list[list[Sample]]:
    """Returns the samples of each fold for the encoder that is trained without it, which also predicts the labels of
    all labelled texts of the fold."""
    samples = []
    for number, (fold, rows) in enumerate(zip(crossed.folds, crossed.rows, strict=True), 1):
        folder = run / FOLDS / str(number)
        stored = folder.with_suffix(".json")
        if not _is_found(stored):
            quiet = Quiet(callback, run, number, len(crossed.folds))
            encoder = train(folder, rows, quiet)
            odds = [] if labelled is None else _log_odds(labelled, number - 1, encoder)
            found: Found = {
                "samples": {each.task: each.values.tolist() for each in fold(encoder).samples},
                "log_odds": odds,
            }
            io.write_text(stored, io.dumps(found) + "\n")
            for each in (folder, *folder.parent.glob(f"{number}-*")):
                io.remove_folder(each)
        samples.append(read_samples(stored))
    return samples


def _log_odds(labelled: Labelled, fold: int, encoder: Encodes) -> list[list[float | None]]:
    own, others = labelled.folds == fold, (labelled.folds != fold) & (labelled.labels >= 0)
    held, known = embed(encoder, [list(compress(labelled.texts, each)) for each in (own, others)])
    found = Linear.fit(known, labelled.labels[others], len(labelled.classes))(held)
    return [[value if np.isfinite(value) else None for value in row] for row in found.tolist()]


def _is_found(path: Path) -> bool:
    """Returns whether the results of a fold are stored; not those of an earlier version, without log-odds."""
    return path.is_file() and "log_odds" in io.read_json(path, dict[str, Any])


def read_samples(path: Path) -> list[Sample]:
    stored = io.read_json(path, Found)["samples"]
    return [Sample(task, np.array(values), unit="rows") for task, values in stored.items()]


def read_log_odds(run: Path) -> dict[int, npt.NDArray[np.float64]]:
    """Returns the log-odds of the texts of each fold ``(m, K)`` that ``judged_by_fold`` stored, by fold from 0."""
    found = {}
    for path in (run / FOLDS).glob("*.json"):
        rows = io.read_json(path, Found)["log_odds"]
        odds = np.array([[-np.inf if value is None else value for value in row] for row in rows])
        found[int(path.stem) - 1] = odds
    return found
