"""The laboratory: the rows of ``tables/effects.toml``, which of them are run, and the tables that compare them.

A row is trained at several temperatures, which are the columns of its table. A comparison (``Comparison``) has rows at
chosen temperatures. Differences have 95 % intervals over pairs and seeds (see ``bootstrap``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from cse.errors import InputError
from cse.evaluation.significance import direction
from cse.evaluation.sts import CLEAN_FILES
from cse.io import read_toml

from .bootstrap import TITLES, interval
from .cells import Cell
from .stored import Records
from .suites import Recipe, Row, Table, find_table, resource, tables

BEFORE = "before training"
FIRST = "standard"
"""The row that systems are compared with."""
GEOMETRY = ("alignment", "uniformity")
Printed = tuple[list[str], list[list[str]]]
"""Names of columns, and rows of cells."""


@dataclass(frozen=True)
class Line:
    """A row of a comparison: the row of the table and its temperature, and the published table, row and column."""

    label: str
    row: str
    tau: str
    published: tuple[str, str, str] | None


@dataclass(frozen=True)
class Comparison:
    """Rows that are compared with the first one by a score."""

    title: str
    score: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Laboratory:
    """The table whose columns are temperatures, and what is compared."""

    table: Table
    systems: Mapping[str, str]
    """The rows that are run at all temperatures, with that of their paper."""
    published: Mapping[str, list[list[str]]]
    """For some systems, the published table and row of the system, and of the one that its paper compares with."""
    comparisons: tuple[Comparison, ...]

    def cell(self, row: str, tau: str | None, seed: int | None) -> Cell:
        """Returns a cell of a row."""
        known = next(each for each in self.table.rows if each.name == row)
        return Cell(self.table, known, tau, known.recipes[tau], seed)

    def cells(self, rows: Iterable[str], seeds: int, best: Mapping[str, str]) -> list[Cell]:
        """Returns the cells to run for some rows, and for the rows that these are compared with. Systems are run at
        every temperature with seed 0, and at that of their paper and at ``best`` with all seeds."""
        chosen = set(rows)
        keys: list[tuple[str, str | None, int | None]] = [(BEFORE, None, None)]
        compared = [each for each in self.comparisons if any(line.row in chosen for line in each.lines)]
        chosen |= {FIRST} if chosen & self.systems.keys() else set()
        systems = [name for name in self.systems if name in chosen]
        keys += [(name, tau, 0) for tau in self.table.columns for name in systems]
        runs = [(name, tau) for name in systems for tau in (self.systems[name], best.get(name)) if tau is not None]
        runs += [
            (line.row, line.tau)
            for each in compared
            for line in each.lines
            if line.row in chosen or line is each.lines[0]
        ]
        keys += [(name, tau, seed) for seed in range(seeds) for name, tau in runs]
        return [self.cell(*key) for key in dict.fromkeys(keys)]

    def trial(self, rows: Iterable[str]) -> list[Cell]:
        """Returns one cell of each row."""
        chosen = {row.name: row for row in self.table.rows}
        return [self.cell(name, self.systems.get(name, next(iter(chosen[name].recipes))), 0) for name in rows]

    def teachers(self, cells: Iterable[Cell]) -> dict[str, Cell]:
        """Returns the cells whose encoders other cells need, by the name of the placeholder."""
        names = {name for cell in cells for name in cell.recipe.needs() if name.startswith("trained ")}
        rows = {name: name.removeprefix("trained ") for name in sorted(names)}
        return {name: self.cell(row, self.systems[row], 0) for name, row in rows.items()}


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings: tables by key, lists are joined, and values of ``""`` are left out."""
    found = dict(first)
    for key, value in second.items():
        if isinstance(value, dict):
            value = _joined(found.get(key, {}), value)
        elif isinstance(value, list):
            value = [*value, *found.get(key, [])]
        found[key] = value
    return {key: value for key, value in found.items() if value != ""}


@cache
def laboratory(file: Path | None = None, imports: tuple[str, ...] = ()) -> Laboratory:
    """Returns the laboratory with the further systems of a file, which use the methods of ``imports``."""
    known = resource("effects.toml")
    more = [] if file is None else _read_rows(file, known)
    common, columns = known["settings"], tuple(known["columns"])
    systems = {each["name"]: f"{each.get('tau', 0.05):g}" for each in [*known["rows"], *more]}
    settings: dict[str, dict[str, Any]] = {}
    for each in [*known["rows"], *more]:
        own = {**each.get("settings", {}), **({"imports": list(imports)} if each in more and imports else {})}
        settings[each["name"]] = _joined(settings.get(each.get("like", ""), common), own)
    taus = dict(systems)
    for name, changes in known["changes"].items():
        settings |= {f"{name}, {change}": _joined(settings[name], own) for change, own in changes.items()}
        taus |= {f"{name}, {change}": systems[name] for change in changes}
    own_of = {each["name"]: each for each in known["rows"]}
    for first, names in known["together"].items():
        for name in names:
            base = own_of[name].get("like")
            added = _joined(own_of[base]["settings"] if base else {}, own_of[name]["settings"])
            settings[f"{first} + {name}"] = _joined(settings[first], added)
            taus[f"{first} + {name}"] = systems[first]
    rows = [Row(BEFORE, "", (math.nan,) * len(columns), recipes={None: Recipe(None, {}, "{base}", "avg")})]
    rows += [
        Row(
            name,
            "",
            (math.nan,) * len(columns),
            recipes={tau: Recipe(None, {**own, "temperature": float(tau)}) for tau in columns},
        )
        for name, own in settings.items()
    ]
    comparisons = []
    for table in known["tables"]:
        lines = []
        for label, run, *published in table["rows"]:
            row, _, tau = run.partition(" @ ")
            where, column = table.get("published", ("", ""))
            cell = (where, published[0], (*published[1:], column)[0]) if published else None
            lines.append(Line(label, row, tau or taus[row], cell))
        comparisons.append(Comparison(table["title"], table["score"], tuple(lines)))
    published = {each["name"]: each["published"] for each in known["rows"] if "published" in each}
    whole = Table("effects", known["source"], known["metric"], columns, tuple(rows), known["suite"])
    return Laboratory(whole, systems, published, tuple(comparisons))


class UserRow(TypedDict):
    name: str
    like: NotRequired[str]
    tau: NotRequired[float]
    settings: NotRequired[dict[str, Any]]


class RowsFile(TypedDict):
    rows: list[UserRow]


def _read_rows(file: Path, known: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the rows of the user's file."""
    rows: list[dict[str, Any]] = [{**each} for each in read_toml(file, RowsFile)["rows"]]
    taken = [BEFORE, *(each["name"] for each in known["rows"])]
    taken += [f"{name}, {change}" for name, changes in known["changes"].items() for change in changes]
    for each in rows:
        name, tau = each["name"], f"{each.get('tau', 0.05):g}"
        wrong = next(
            (f"unknown key {key}, not name, like, tau or settings" for key in each.keys() - UserRow.__annotations__), ""
        )
        if name in taken:
            wrong = "the name is taken; choose another one"
        elif each.get("like", name) not in {name, *(row["name"] for row in known["rows"])}:
            wrong = f"like names no row of the laboratory, {each['like']!r}"
        elif tau not in known["columns"]:
            wrong = f"tau must be one of {', '.join(known['columns'])}"
        if wrong:
            raise InputError(f"--rows {file}: row {name}: {wrong}")
        taken.append(name)
    return rows


class Results:
    """Records by row, temperature and seed, of one base, corpus and device; ``grid`` has the grid if they have none."""

    def __init__(self, lab: Laboratory, records: Records, grid: Results | None = None) -> None:
        self.lab, self.records, self.grid = lab, records, grid

    def scores(self, row: str, tau: str | None, seed: int | None) -> dict[str, float]:
        scores: dict[str, float] = self.records[row, tau, seed]["scores"]
        return scores

    def seeds(self, row: str, tau: str) -> list[int]:
        """Returns the seeds that are stored."""
        return sorted(seed for name, at, seed in self.records if (name, at) == (row, tau) and seed is not None)

    def selection(self, row: str) -> tuple[str, str] | None:
        """Returns the best temperature of a row with seed 0, and the development set that chose it. The clean sets
        choose it (the mean of their scores) if all runs have their scores, else STS-B dev. None if a run is not
        stored."""
        if any((row, tau, 0) not in self.records for tau in self.lab.table.columns):
            return None if self.grid is None else self.grid.selection(row)
        scores = {tau: self.scores(row, tau, 0) for tau in self.lab.table.columns}
        clean = all(title in each for each in scores.values() for title in CLEAN_FILES)
        titles = [*CLEAN_FILES] if clean else ["STS-B dev"]
        dev = {tau: statistics.fmean(each[title] for title in titles) for tau, each in scores.items()}
        return max(dev, key=lambda tau: dev[tau]), " and ".join(titles)

    def best(self) -> dict[str, str]:
        """Returns the best temperature of the systems whose grid is stored."""
        found = {name: self.selection(name) for name in self.lab.systems}
        return {name: each[0] for name, each in found.items() if each is not None}

    def mean(self, row: str, tau: str, seeds: Sequence[int], score: str) -> float:
        return statistics.fmean(self.scores(row, tau, seed)[score] for seed in seeds)

    def change(
        self, after: tuple[str, str], before: tuple[str, str], seeds: Sequence[int], score: str
    ) -> tuple[str, int | None]:
        """Returns the mean change over the seeds with its interval, as text, and its sign: 0 if 0 is in the interval.
        Alignment and uniformity have no interval, so that their sign is None: it cannot be told from 0."""
        mean = self.mean(*after, seeds, score) - self.mean(*before, seeds, score)
        if score in GEOMETRY:
            return f"{mean:+.3f}", None
        sides = [
            [np.array(self.records[*run, seed]["draws"][score], dtype=np.float64) / 100 for seed in seeds]
            for run in (after, before)
        ]
        low, high = interval(np.array(sides[0]) - np.array(sides[1]))
        return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]", direction(low, high)


AGREEMENT = ("same", "**opposite**", "undecided", "no interval")


def agreement(sign: int | None, published: float) -> str:
    """Returns whether the sign of a change is the published one, one of ``AGREEMENT``."""
    return AGREEMENT[3 if sign is None else 2 if sign == 0 else 0 if sign * published > 0 else 1]


@cache
def published_value(table: str, method: str, column: str) -> float:
    """Returns a published value of BERT-base."""
    found = find_table(table)
    row = next(row for row in found.rows if row.method == method and row.model in ("bert-base-uncased", ""))
    return row.values[found.columns.index(column)]


def systems(results: Results) -> Printed:
    """Compares systems with the first one, both at their best temperatures, and both at those of the papers."""
    lab, best, rows = results.lab, results.best(), []
    for system, own in lab.systems.items():
        taus = [("best", best[system], best[FIRST])] if {system, FIRST} <= best.keys() else []
        for which, tau, other in [*taus, ("published", own, lab.systems[FIRST])]:
            seeds = results.seeds(system, tau)
            if not seeds:
                continue
            row = [system, f"{tau}, {which}", str(len(seeds)), f"{results.mean(system, tau, seeds, 'mean'):.2f}"]
            row += ["", "", ""]
            both = [seed for seed in seeds if seed in results.seeds(FIRST, other)]
            if system != FIRST and both:
                row[2] += f", {len(both)} compared" if len(both) < len(seeds) else ""
                row[4], sign = results.change((system, tau), (FIRST, other), both, "mean")
                if system in lab.published:
                    value, reference = (published_value(*each, "Avg.") for each in lab.published[system])
                    row[5:] = f"{value - reference:+.2f}", agreement(sign, value - reference)
            rows.append(row)
    return ["system", "tau", "seeds", "mean of seven", "change [95 % interval]", "published change", "sign"], rows


def temperatures(results: Results) -> Printed:
    """Compares systems at each temperature, with seed 0, with the first one at the same temperature."""
    rows = []
    for system in results.lab.systems:
        for tau in sorted(results.lab.table.columns, key=float):
            if 0 not in results.seeds(system, tau):
                continue
            compared = system != FIRST and 0 in results.seeds(FIRST, tau)
            change = results.change((system, tau), (FIRST, tau), [0], "mean")[0] if compared else ""
            record = results.records[system, tau, 0]
            values = [f"{record['scores'][score]:.2f}" for score in ("STS-B dev", "mean")]
            cost = f"{record['train_processor_seconds'] / record['steps']:.2f}"
            rows.append([system, tau, *values, change, cost])
    return ["system", "tau", "STS-B dev", "mean of seven", "change [over pairs]", "core-seconds per step"], rows


def data_sets(results: Results) -> Printed:
    """Lists the scores by data set, averaged over seeds."""
    known = [*TITLES, "mean", "STS-B dev", *GEOMETRY]
    groups: list[tuple[str, str, list[dict[str, float]]]] = []
    if (BEFORE, None, None) in results.records:
        groups.append((BEFORE, "", [results.scores(BEFORE, None, None)]))
    for system in results.lab.systems:
        for tau in results.lab.table.columns:
            scores = [results.scores(system, tau, seed) for seed in results.seeds(system, tau)]
            groups += [(system, tau, scores)] if scores else []
    more = {column: None for _, _, scores in groups for each in scores for column in each if column not in known}
    columns = [*known, *(column for column in more if all(column in each for _, _, some in groups for each in some))]
    rows = [
        [system, tau, str(len(scores)), *(f"{statistics.fmean(each[c] for each in scores):.2f}" for c in columns)]
        for system, tau, scores in groups
    ]
    return ["system", "tau", "seeds", *columns], rows


def comparison(results: Results, table: Comparison) -> Printed:
    """Compares the rows of a comparison that are stored with its first one; no rows if fewer than two are stored. The
    mean of a row is over the seeds that its first row has too. The first row has the mean of all its seeds and, if
    other rows have fewer, that of its first seed in brackets, with which their means must be compared."""
    first, score = table.lines[0], table.score
    bases = results.seeds(first.row, first.tau)
    rows, few = [], False
    for line in table.lines:
        seeds = results.seeds(line.row, line.tau)
        if not seeds:
            continue
        both = [seed for seed in seeds if seed in bases]
        compared = both or seeds
        mean = results.mean(line.row, line.tau, compared, score)
        row = [line.label, str(len(compared)), f"{mean:.2f}", "", "", "", ""]
        reference = None
        if line.published is not None:
            value = published_value(*line.published)
            row[4] = f"{value:.2f}"
            reference = value - published_value(*(first.published or line.published))
        if line is not first and both:
            row[3], sign = results.change((line.row, line.tau), (first.row, first.tau), both, score)
            few = few or len(both) < len(bases)
            if reference is not None:
                row[5:] = f"{reference:+.2f}", agreement(sign, reference)
        rows.append(row)
    if few and rows[0][0] == first.label:
        rows[0][2] += f" ({results.mean(first.row, first.tau, bases[:1], score):.2f})"
    head = [table.title.split(": ")[1], "seeds", score, "change [95 % interval]", "published"]
    return [*head, "published change", "sign"], rows if len(rows) > 1 else []


def signs(compared: Mapping[str, Printed]) -> Printed:
    """Counts the changes of each comparison whose sign is that of the paper; the last row has the sums."""
    rows = []
    for title, (_, lines) in compared.items():
        found = [row[-1] for row in lines if row[-1]]
        if found:
            rows.append([title, *(str(found.count(kind)) for kind in AGREEMENT)])
    if rows:
        rows.append(["all", *(str(sum(map(int, column))) for column in list(zip(*rows, strict=True))[1:])])
    return ["table", *(kind.strip("*") for kind in AGREEMENT)], rows


def costs(results: Results) -> Printed:
    """Sums the processor time of the training runs and their evaluation."""
    seconds = [record["processor_seconds"] for (_, _, seed), record in results.records.items() if seed is not None]
    row = [str(len(seconds)), f"{sum(seconds) / 3600:.2f}", f"{statistics.median(seconds):.0f}"] if seconds else []
    return ["set", "runs", "processor hours", "median processor seconds"], [["all", *row]] if row else []


def chosen_by(results: Results) -> str:
    """Says which development set chose the best temperatures."""
    by: dict[str, list[str]] = {}
    for name in results.lab.systems:
        selection = results.selection(name)
        if selection is not None:
            by.setdefault(selection[1], []).append(name)
    remark = {"STS-B dev": ", most of whose pairs are test pairs"}
    said = [f"on {title}{remark.get(title, '')}: {'; '.join(names)}" for title, names in by.items()]
    return f"Best temperatures were chosen with seed 0 {', and '.join(said)}." if said else ""


def all_tables(results: Results) -> dict[str, Printed]:
    """Returns the tables of some records by title; those without rows are left out."""
    compared = {table.title: comparison(results, table) for table in results.lab.comparisons}
    tables = {
        "Systems": systems(results),
        "Temperatures": temperatures(results),
        "Data sets": data_sets(results),
        "Signs": signs(compared),
        "Cost": costs(results),
        **compared,
    }
    return {title: table for title, table in tables.items() if table[1]}


def tables_of(lab: Laboratory, sets: Mapping[str, Records]) -> dict[str, Printed]:
    """Returns the tables of sets of records by title and name of the set; the grid of the first set serves all."""
    found: dict[str, Printed] = {}
    first: Results | None = None
    for name, records in sets.items():
        results = Results(lab, records, first)
        first = first or results
        found |= {f"{title} ({name})" if name else title: table for title, table in all_tables(results).items()}
    return found


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]


def known_tables() -> dict[str, Table]:
    """Returns the published tables, and that of the laboratory, by name."""
    return tables() | {"effects": laboratory().table}
