"""A small laboratory, ``cse reproduce effects --small``: short runs on the package's sample, without evaluation data.

Runs are judged by halves of sentences that they are not trained on. Scores of so short runs with so small a measure say
whether a method trains, what it costs, and whether it harms much; they are not compared with published changes. All
outputs say "small".
"""

from __future__ import annotations

import hashlib
import math
import shlex
import statistics
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

from .bootstrap import RESAMPLES
from .cells import Cell
from .effects import BEFORE, FIRST, Laboratory, Printed, is_tau
from .inputs import Inputs, with_base, written
from .measured import TESTED, Change, Results, markdown, with_tests
from .suites import Scorer
from .work import Shown, Work, check_settings, run_cells

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cse.evaluation.base import Encodes
    from cse.reports.style import Panel

STEPS = 60
"""Steps of a run, and of the masked language modelling that makes the base."""
JUDGED = 1000
"""Sentences at the end of the sample that judge, and are not trained on."""
SEEDS = 2
ROWS = (FIRST, "UNA", "focal")
"""Rows that are run if none are named."""
HALVES = "halves"
TITLE = "Systems (small)"
NOTE = (
    "small: runs of {steps} steps on the package's sample, judged by halves of {judged:,} of its sentences. They show "
    "whether a method trains and whether it harms; they do not order methods, and are not compared with published "
    "changes."
)


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


def sample() -> tuple[list[str], list[str]]:
    """Returns the sentences of the sample to train on, and the sentences that judge."""
    rows = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").splitlines()
    long = [place for place, row in enumerate(rows) if len(row.split()) >= HELD_OUT_WORDS]
    first = long[-JUDGED]
    judged = dict.fromkeys(rows[place] for place in long[-JUDGED:])
    return [row for row in rows[:first] if row not in judged], list(judged)


def small_work(lab: Laboratory, selected: Sequence[str], place: Path, made: Path, **settings: Any) -> Work:
    """Returns the work on rows: the selected ones, else those of the user, else ``ROWS``. ``settings`` are
    ``seeds``, ``keep_models``, ``jobs`` and those of ``Inputs``; files are written to ``made``."""
    trained, judged = sample()
    seeds, keep_models, jobs = settings.pop("seeds") or SEEDS, settings.pop("keep_models"), settings.pop("jobs")
    settings["max_steps"] = settings["max_steps"] or STEPS
    inputs = Inputs(made, written(made / "sentences.txt", trained), **settings)
    rows = lab.table.find_rows(selected or lab.own or ROWS)
    if lab.own and not selected:
        others = " ".join(f"--row {shlex.quote(name)}" for name in (*lab.own, *ROWS[1:]))
        printing.say(f"only the rows of --rows are run, beside the standard loss; with UNA and focal: {others}")
    return Work(lab.table, rows, range(seeds), inputs, HalvesScorer(judged), place, keep_models, False, jobs)


def cells_of_rows(lab: Laboratory, names: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Returns the cells of rows at their own temperature, or of all values of their grid, and of the standard loss."""
    taus = {name: lab.own_tau(name) for name in names if name != BEFORE}
    columns = {name: (tau,) if is_tau(tau) else lab.columns(name) for name, tau in taus.items()}
    standard = [lab.same(name, column) for name, each in columns.items() for column in each]
    runs = [(FIRST, column) for column in standard]
    runs += [(name, column) for name, each in columns.items() for column in each]
    found = [lab.cell(BEFORE, None, None)]
    return found + [lab.cell(*each, seed) for seed in seeds for each in dict.fromkeys(runs)]


def changes(results: Results) -> list[tuple[str, str, str, list[int], Change | None]]:
    """Returns the row, its column, what it is compared with, its seeds and its change, of the runs that are stored."""
    found: list[tuple[str, str, str, list[int], Change | None]] = []
    runs = dict.fromkeys((name, column) for name, column, _ in results.records if column is not None)
    for name, column in runs:
        seeds, same = results.seeds(name, column), results.lab.same(name, column)
        both = [seed for seed in seeds if seed in results.seeds(FIRST, same)]
        change = results.change((name, column), (FIRST, same), both, HALVES) if both and name != FIRST else None
        found.append((name, column, "" if change is None else f"{FIRST}, {same}", seeds, change))
    return found


def table(results: Results) -> Printed:
    """Compares rows with the standard loss at the same temperature."""
    rows: list[tuple[list[str], Change | None, float | None]] = []
    if (BEFORE, None, None) in results.records:
        rows.append(([BEFORE, "", "", "", f"{results.scores(BEFORE, None, None)[HALVES]:.2f}", ""], None, None))
    for name, column, against, seeds, change in changes(results):
        seconds = statistics.median(results.records[name, column, seed]["train_seconds"] for seed in seeds)
        mean = f"{results.mean(name, column, seeds, HALVES):.2f}"
        rows.append(([name, column, str(len(seeds)), f"{seconds:.0f}", mean, against], change, None))
    head = ["system", "tau", "seeds", "seconds", "MRR of halves x 100", "compared with", *TESTED[:2]]
    return head, [row[: len(head)] for row in with_tests(rows)]


def panel(results: Results, note: str) -> Panel:
    """Returns a plot of the changes."""
    from cse.reports.style import COLOURS, Panel, labelled

    def draw(axes: Axes) -> None:
        found = [
            (f"{name}, {column}", change)
            for name, column, _, _, change in changes(results)
            if change is not None and not math.isnan(change.p)  # of one seed, the spread is not known
        ]
        for place, (_, change) in enumerate(found):
            axes.plot([change.low, change.high], [place] * 2, color=COLOURS[0], linewidth=1.6)
            axes.plot(change.mean, place, marker="o", linestyle="", color=COLOURS[0])
        axes.axvline(0, linewidth=0.6)
        axes.set_yticks(range(len(found)), [name for name, _ in found], fontsize=7)
        axes.invert_yaxis()
        labelled(axes, "small: change of the MRR of halves x 100", "")

    return Panel(TITLE, note, draw)


def run_small(lab: Laboratory, work: Work, shown: Shown) -> None:
    """Runs the cells of the chosen rows that are not stored, and prints the table; ``work.inputs`` has no base yet."""
    corpus = work.inputs.corpus
    assert corpus is not None
    cells = cells_of_rows(lab, [row.name for row in work.rows], work.seeds)
    check_settings(cells, work)
    inputs = with_base(work.inputs, corpus, work.place / "inputs", work.inputs.max_steps, printing.say)
    results = run_cells(lab, replace(work, inputs=inputs), cells)
    head, rows = table(results)
    note = NOTE.format(steps=work.inputs.max_steps, judged=JUDGED)
    found = {"small": True, "note": note, "tables": {TITLE: {"columns": head, "rows": rows}}}
    printing.result(found, shown.as_json, [f"### {TITLE}", "", *markdown(head, rows), "", note])
    shown.write({TITLE: (head, rows)}, lambda: [panel(results, note)])
