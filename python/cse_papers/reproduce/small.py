"""The laboratory on the package's sample, without evaluation data: ``cse reproduce effects --small``.

Runs are judged by halves of sentences that they are not trained on. ``[small]`` of ``tables/effects.toml`` has its rows
and numbers. All outputs say "small".
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cse.cli import printing
from cse.data.corpus import HELD_OUT_WORDS
from cse.evaluation.base import counted
from cse.evaluation.geometry import score_halves

from .cells import Cell
from .effects import BEFORE, FIRST, HALVES, Laboratory, is_tau
from .effects_tables import Results
from .inputs import Inputs, with_base, written
from .intervals import RESAMPLES
from .scores import Scorer
from .work import Work, check_settings, run_cells

if TYPE_CHECKING:
    from cse.evaluation.base import Encodes


class HalvesScorer(Scorer):
    """Scores encoders by the mean reciprocal rank x 100 of one half of a sentence with the other one as the query."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self.sentences = list(sentences)

    def hash(self, column: str | None = None) -> str:
        return hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()[:16]

    def measure(
        self, encoder: Encodes, progress: Callable[[int, int], None] | None = None, column: str | None = None
    ) -> tuple[dict[str, float], dict[str, list[int | None]]]:
        """Returns the score, alignment and uniformity, and the score in hundredths of a point on resamples of the
        sentences, which are the same for all runs."""
        n = len(self.sentences)
        score = score_halves(encoder, self.sentences, counted(2 * n, progress))
        drawn = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
        draws = np.rint(100 * 100 * score.per_sentence[drawn].mean(1)).astype(int).tolist()
        scores = {HALVES: 100 * score.mrr, "alignment": score.alignment, "uniformity": score.uniformity}
        return scores, {HALVES: draws}


def sample(judged: int) -> tuple[list[str], list[str]]:
    """Returns the sentences of the sample to train on, and the ``judged`` ones at its end, which judge."""
    rows = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").splitlines()
    long = [place for place, row in enumerate(rows) if len(row.split()) >= HELD_OUT_WORDS]
    last = dict.fromkeys(rows[place] for place in long[-judged:])
    return [row for row in rows[: long[-judged]] if row not in last], list(last)


def small_work(lab: Laboratory, selected: Sequence[str], place: Path, seeds: int | None, **settings: Any) -> Work:
    """Returns the work on the selected rows, else on those of the user, else on those of ``lab.small``. ``settings``
    are those of ``Work`` and of ``Inputs``."""
    small, others = lab.small, {name: settings.pop(name) for name in ("keep_models", "jobs")}
    trained, judged = sample(small.judged)
    settings["max_steps"] = settings["max_steps"] or small.steps
    made = place / "inputs"
    inputs = Inputs(made, written(made / "sentences.txt", trained), **settings)
    rows = lab.table.find_rows(selected or lab.own or small.rows)
    if lab.own and not selected:
        more = " ".join(f"--row {shlex.quote(name)}" for name in (*lab.own, *small.rows[1:]))
        printing.say(f"only the rows of --rows are run, beside the standard loss; with UNA and focal: {more}")
    return Work(lab.table, rows, range(seeds or small.seeds), inputs, HalvesScorer(judged), place, **others)


def cells_of_rows(lab: Laboratory, names: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Returns the cells of rows at their own temperature, or of all values of their grid, and of the standard loss."""
    taus = {name: lab.own_tau(name) for name in names if name != BEFORE}
    columns = {name: (tau,) if is_tau(tau) else lab.columns(name) for name, tau in taus.items()}
    standard = [lab.same(name, column) for name, each in columns.items() for column in each]
    runs = [(FIRST, column) for column in standard]
    runs += [(name, column) for name, each in columns.items() for column in each]
    found = [lab.cell(BEFORE, None, None)]
    return found + [lab.cell(*each, seed) for seed in seeds for each in dict.fromkeys(runs)]


def run_small(lab: Laboratory, work: Work) -> Results:
    """Runs the cells of the rows that are not stored, on the base that is made first; returns all records."""
    assert work.inputs.corpus is not None
    cells = cells_of_rows(lab, [row.name for row in work.rows], work.seeds)
    check_settings(cells, work)
    inputs = with_base(work.inputs, work.inputs.corpus, work.place / "inputs", work.inputs.max_steps, printing.say)
    return run_cells(lab, replace(work, inputs=inputs), cells)
