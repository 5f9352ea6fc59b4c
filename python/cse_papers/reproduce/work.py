"""Plans and runs the cells of a command, in one process or several, and prints the tables of the laboratory.

The plan says which cells (see ``cells``) are stored, which are to be run, and why the rest are left out.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cse.cli import printing
from cse.errors import RunError
from cse.io import write_text
from cse.progress import duration, progress_of

from .cells import Cell, Plan, cells_of, config_of, read_cell, run_cell
from .effects import Laboratory, Printed
from .inputs import SAME_SHAPE, TRAINED, Inputs, is_made, laboratory_inputs
from .measured import Results, chosen_by, markdown, order_panel, tables_of
from .results import changes_on_documents
from .stored import Records, key_of
from .suites import Row, Scorer, Table

if TYPE_CHECKING:
    from cse.reports.style import Panel


@dataclass(frozen=True)
class Work:
    """What the runs of a command share."""

    table: Table
    rows: Sequence[Row]
    seeds: Sequence[int]
    inputs: Inputs
    scorer: Scorer
    place: Path
    keep_models: bool
    smoke: bool
    jobs: int

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


def run(chosen: Plan, work: Work) -> set[str]:
    """Runs the cells that are not stored yet, and stores them. A run that fails, for example for lack of memory, does
    not stop the others: ``RunError`` is raised at the end. In a trial, the names of the rows that fail are returned."""
    from cse.encoder.device import set_threads

    failed: set[str] = set()
    faults: list[str] = []
    set_threads(work.inputs.threads)
    total, trained = len(chosen.wanted), sum(cell.recipe.encoder is None for cell in chosen.wanted)
    began, done = time.monotonic(), 0
    for number, (cell, finished) in enumerate(outcomes(chosen.wanted, work), 1):
        named = f"{number:,} of {total:,}, {cell.name}: " if work.jobs > 1 else ""
        try:
            record = finished()
        except Exception as error:  # whatever a method raises
            if not work.smoke and not isinstance(error, RunError):
                raise
            failed.add(cell.row.name)
            faults.append(f"{cell.name}: {error}")
            printing.say(f"  {named}fails: {error}")
            continue
        chosen.add(cell, record)
        if work.smoke:
            printing.say("  runs")
            continue
        scores = ", ".join(
            f"{name if name != '*' else 'score'} {value:.2f}" for name, value in record["scores"].items()
        )
        done += cell.recipe.encoder is None
        left = (time.monotonic() - began) * (trained - done) / max(done, 1)
        rest = f"; about {duration(left)} left for {trained - done:,} more runs" if 0 < done < trained else ""
        printing.say(f"  {named}{scores}; {record['seconds']:.0f} s{rest}")
    if faults and not work.smoke:
        raise RunError(
            f"{len(faults)} of {total} runs failed ({faults[0]}); the others are stored, and the same "
            "command tries these again"
        )
    return failed


def outcomes(cells: Sequence[Cell], work: Work) -> Iterator[tuple[Cell, Callable[[], dict[str, Any]]]]:
    """Runs cells, ``work.jobs`` at a time; yields each with a function that returns its record or raises its error."""
    from cse.cli.commands.train import ConsoleCallback
    from cse.encoder.device import set_threads

    class Shown(ConsoleCallback):
        """Names the command that continues a cell that was stopped, which is not ``cse train --resume``."""

        def on_interrupt(self, why: str) -> None:
            super().on_interrupt(f"{why.partition(';')[0]}; repeat the command to continue")

    if work.jobs == 1:
        for number, cell in enumerate(cells, 1):
            printing.say(f"cell {number:,} of {len(cells):,}: {cell.name}")
            callback = None if work.smoke or cell.recipe.encoder is not None else Shown()
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


# A number at the beginning of a cell, and its interval.
NUMBER = re.compile(r"\**([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?![\w.])(?: \[([+-]?[\d.]+), ([+-]?[\d.]+)\])?")


@dataclass(frozen=True)
class Shown:
    """How the results of a command are shown besides as text."""

    as_json: bool = False
    csv: str | None = None
    latex: str | None = None
    picture: str | None = None

    def write(self, tables: Mapping[str, Printed], panels: Callable[[], Sequence[Panel]]) -> None:
        """Writes the tables, by title, and the panels to files, if wanted."""
        if self.csv is not None:
            write_text(self.csv, csv_of(tables))
            printing.say(f"wrote {self.csv}")
        if self.latex is not None:
            write_text(self.latex, latex_of(tables))
            printing.say(f"wrote {self.latex}")
        if self.picture is not None:
            from cse.reports.style import write

            write(panels(), Path(self.picture))
            printing.say(f"wrote {self.picture}")


def csv_of(tables: Mapping[str, Printed]) -> str:
    """Returns the cells of tables as CSV: the title of the table, the number of the row and its first cell, the name of
    the column; the number in the cell, if it begins with one, and its interval, if it has one; and the cell as it is
    printed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "number", "row", "column", "value", "low", "high", "text"])
    for title, (head, rows) in tables.items():
        for number, row in enumerate(rows, 1):
            for column, cell in zip(head[1:], row[1:], strict=True):
                found = NUMBER.match(cell)
                writer.writerow([title, number, row[0], column, *(found.groups("") if found else [""] * 3), cell])
    return text.getvalue()


def latex_of(tables: Mapping[str, Printed]) -> str:
    """Returns tables for LaTeX with the package booktabs."""
    parts = []
    for title, (head, rows) in tables.items():
        lines = [" & ".join(map(_for_latex, row)) + r" \\" for row in (head, *rows)]
        parts += [
            f"% {title}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    return "\n".join(parts)


def _for_latex(cell: str) -> str:
    bold = re.fullmatch(r"\*\*(.*)\*\*", cell)
    text = re.sub(r"([&%$#_{}])", r"\\\1", bold[1] if bold else cell)
    text = text.replace("^", r"\^{}").replace("~", r"\~{}")
    return rf"\textbf{{{text}}}" if bold else text


def show_domain(table: Table, sets: Mapping[str, Records], shown: Shown) -> None:
    """Prints the changes of the losses on documents for sets of records."""
    head, rows = changes_on_documents(table, sets)
    printing.result({"columns": head, "rows": rows}, shown.as_json, markdown(head, rows))
    shown.write({table.name: (head, rows)}, list)


def show_tables(lab: Laboratory, sets: Mapping[str, Records], shown: Shown, others: Mapping[str, Records] = {}) -> None:
    """Prints the tables of the laboratory for sets of records, and comparisons with ``others`` across devices."""
    tables = tables_of(lab, sets, others)
    remarks = {name: chosen_by(Results(lab, records)) for name, records in sets.items()}
    lines = [line for title, table in tables.items() for line in (f"### {title}", "", *markdown(*table), "")]
    lines += [f"{name}: {remark}" if name else remark for name, remark in remarks.items() if remark]
    found = {title: {"columns": head, "rows": rows} for title, (head, rows) in tables.items()}
    printing.result({"tables": found, "selection": remarks}, shown.as_json, lines)
    shown.write(tables, lambda: [order_panel(Results(lab, records), name) for name, records in sets.items()])


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


def run_laboratory(lab: Laboratory, work: Work, shown: Shown) -> None:
    """Runs the cells of the chosen rows: those of all temperatures, then those of the best ones; prints the tables."""
    names = [row.name for row in work.rows]
    cells = lab.cells(names, len(work.seeds), {})
    check_settings(cells, work)
    work = replace(work, inputs=laboratory_inputs(work.inputs, work.place / "inputs", printing.say))
    results, known = Results(lab, {}), None
    while cells != known:  # the best temperatures are known when the first cells are stored
        results = run_cells(lab, work, cells)
        known, cells = cells, lab.cells(names, len(work.seeds), results.best())
    show_tables(lab, {"": results.records}, shown, work.inputs.stored)


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
