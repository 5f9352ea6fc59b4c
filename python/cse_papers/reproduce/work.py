"""Plans and runs the cells of a command, in one process or several.

The plan says which cells (see ``cells``) are stored, which are to be run, and why the rest are left out.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from cse.cli import printing
from cse.errors import RunError
from cse.progress import duration, progress_of

from .cells import Cell, cells_of, config_of
from .effects import Laboratory
from .effects_tables import Results
from .inputs import SAME_SHAPE, TRAINED, Inputs, is_made, laboratory_inputs
from .runner import run_cell
from .scores import Scorer
from .stored import key_of, read_cell
from .tables import Row, Table


@dataclass
class Plan:
    """The cells of some rows of a table."""

    stored: dict[str, list[dict[str, Any]]]
    """Stored cells by the name of the row."""
    wanted: list[Cell]
    """Cells to be run, in order."""
    notes: dict[str, str]
    """Why cells of a row are neither stored nor run, by the name of the row."""

    def add(self, cell: Cell, record: dict[str, Any]) -> None:
        """Adds the record of a cell that has been run and stored."""
        self.stored.setdefault(cell.row.name, []).append(record)


@dataclass(frozen=True)
class Work:
    """What the runs of a command share."""

    table: Table
    rows: Sequence[Row]
    seeds: Sequence[int]
    inputs: Inputs
    scorer: Scorer
    place: Path
    keep_models: bool = False
    jobs: int = 1

    def plan(self, cells: Sequence[Cell] | None = None) -> Plan:
        """Returns the plan of all cells, or of some, and says how many of them are stored."""
        chosen = Plan({}, [], {row.name: row.status for row in self.rows if not row.recipes})
        for cell in cells_of(self.table, self.rows, self.seeds) if cells is None else cells:
            if (lacks := cell.lacks(self.inputs)) is not None:
                chosen.notes[cell.row.name] = f"needs {lacks}"
            elif record := read_cell(cell, self.inputs, self.scorer, self.place):
                chosen.add(cell, record)
            else:
                chosen.wanted.append(cell)
        known = sum(map(len, chosen.stored.values()))
        total = known + len(chosen.wanted)
        printing.say(f"{self.table.name}: {total:,} cell{'s' * (total != 1)}, {known:,} of them stored in {self.place}")
        for name, note in chosen.notes.items():
            printing.say(f"{name}: {note}")
        return chosen


def run(chosen: Plan, work: Work) -> None:
    """Runs the cells that are not stored yet, and stores them. A run that fails, for example for lack of memory, does
    not stop the others: ``RunError`` is raised at the end."""
    from cse.encoder.device import set_threads

    faults: list[str] = []
    set_threads(work.inputs.threads)
    total, trained = len(chosen.wanted), sum(cell.recipe.encoder is None for cell in chosen.wanted)
    began, done = time.monotonic(), 0
    for number, (cell, finished) in enumerate(outcomes(chosen.wanted, work), 1):
        named = f"{number:,} of {total:,}, {cell.name}: " if work.jobs > 1 else ""
        try:
            record = finished()
        except RunError as error:
            faults.append(f"{cell.name}: {error}")
            printing.say(f"  {named}fails: {error}")
            continue
        chosen.add(cell, record)
        scores = ", ".join(
            f"{name if name != '*' else 'score'} {value:.2f}" for name, value in record["scores"].items()
        )
        done += cell.recipe.encoder is None
        left = (time.monotonic() - began) * (trained - done) / max(done, 1)
        rest = f"; about {duration(left)} left for {trained - done:,} more runs" if 0 < done < trained else ""
        printing.say(f"  {named}{scores}; {record['seconds']:.0f} s{rest}")
    if faults:
        raise RunError(
            f"{len(faults)} of {total} runs failed ({faults[0]}); the others are stored, and the same "
            "command tries these again"
        )


def outcomes(cells: Sequence[Cell], work: Work) -> Iterator[tuple[Cell, Callable[[], dict[str, Any]]]]:
    """Runs cells, ``work.jobs`` at a time; yields each with a function that returns its record or raises its error."""
    from cse.cli.commands.train import ConsoleCallback
    from cse.encoder.device import set_threads

    class Console(ConsoleCallback):
        """Names the command that continues a cell that was stopped, which is not ``cse train --resume``."""

        def on_interrupt(self, why: str) -> None:
            super().on_interrupt(f"{why.partition(';')[0]}; repeat the command to continue")

    if work.jobs == 1:
        for number, cell in enumerate(cells, 1):
            printing.say(f"cell {number:,} of {len(cells):,}: {cell.name}")
            callback = None if cell.recipe.encoder is not None else Console()
            with progress_of("evaluating", "texts") as progress:
                yield (
                    cell,
                    partial(run_cell, cell, work.inputs, work.scorer, work.place, callback, progress, work.keep_models),
                )
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(work.jobs, context, set_threads, (work.inputs.threads,))
    try:
        given = (work.inputs, work.scorer, work.place, None, None, work.keep_models)
        running = {pool.submit(run_cell, cell, *given): cell for cell in cells}
        for future in as_completed(running):
            yield running[future], future.result
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
        pool.shutdown()


def check_settings(cells: Sequence[Cell], work: Work) -> None:
    """Raises ``InputError`` for settings of cells that are invalid, before a base is made and anything is trained."""
    from cse.encoder.resolve import find_model
    from cse.training.settings.resolve import resolve

    base, find = work.inputs.model or SAME_SHAPE, cache(find_model)
    names = {name for cell in cells for name in cell.recipe.needs() if is_made(name)}
    inputs = replace(work.inputs, model=base, files={**work.inputs.files, **dict.fromkeys(names, base)})
    for cell in {(cell.row.name, cell.column): cell for cell in cells}.values():
        if cell.recipe.encoder is None and cell.lacks(inputs) is None:
            resolve(config_of(cell, inputs, work.place), find)


def run_laboratory(lab: Laboratory, work: Work) -> tuple[Work, Results]:
    """Runs the cells of the chosen rows: those of all temperatures, then those of the best ones. Returns the work with
    the base of the laboratory, and all records."""
    names = [row.name for row in work.rows]
    cells = lab.cells(names, len(work.seeds), {})
    check_settings(cells, work)
    work = replace(work, inputs=laboratory_inputs(work.inputs, work.place / "inputs", printing.say))
    results, known = Results(lab, {}), None
    while cells != known:  # the best temperatures are known when the first cells are stored
        results = run_cells(lab, work, cells)
        known, cells = cells, lab.cells(names, len(work.seeds), results.best())
    return work, results


def planned(lab: Laboratory, work: Work, cells: Sequence[Cell]) -> tuple[Work, list[Cell], Plan]:
    """Returns the work with the encoders that cells need, the cells that train these, if they are missing, and the plan
    of the others."""
    teachers = lab.teachers(cells)
    encoders = {name: cell.path(work.place).with_suffix("") / "best" for name, cell in teachers.items()}
    files = {**work.inputs.files, **{name: str(folder) for name, folder in encoders.items()}}
    work = replace(work, inputs=replace(work.inputs, files=files))
    chosen = work.plan(cells)
    needed = {name for cell in chosen.wanted for name in cell.recipe.needs() if name.startswith(TRAINED)}
    first = [teachers[name] for name in sorted(needed) if not encoders[name].exists()]
    chosen.wanted = [cell for cell in chosen.wanted if cell not in first]
    return work, first, chosen


def results_of(lab: Laboratory, chosen: Plan) -> Results:
    return Results(lab, {key_of(record): record for records in chosen.stored.values() for record in records})


def run_cells(lab: Laboratory, work: Work, cells: Sequence[Cell]) -> Results:
    """Runs the cells that are not stored, after those whose encoders they need; returns all records."""
    work, first, chosen = planned(lab, work, cells)
    models = Plan({}, first, {})
    run(models, replace(work, keep_models=True))
    run(chosen, work)
    for name, records in models.stored.items():
        chosen.stored[name] = [*chosen.stored.get(name, ()), *records]
    return results_of(lab, chosen)
