"""The laboratory: the rows of ``tables/effects.toml``, and which of them are run; ``effects_tables`` has its tables.

A row is trained at several temperatures, or with the values of a grid of its own, which are the columns of its table.
A comparison (``Comparison``) has rows at chosen temperatures.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from cse.errors import InputError
from cse.losses import CONTRASTIVE_LOSSES

from .cells import Cell
from .inputs import TRAINED
from .own_rows import read_rows
from .tables import Recipe, Row, Table, find_table, merged, resource, tables

BEFORE = "before training"
FIRST = "standard"
"""The row that systems are compared with."""
GEOMETRY = ("alignment", "uniformity")
HALVES = "halves"
"""The score of ``--small``."""
OWN = "own"
"""The column of a row of a user whose loss is not contrastive, so that it has no temperature, and that has no grid."""


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
class Small:
    """The laboratory on the package's sample (``cse reproduce effects --small``)."""

    title: str
    rows: tuple[str, ...]
    """Rows that are run if none are named; the first one is that of ``FIRST``."""
    steps: int
    """Steps of a run, and of the masked language modelling that makes the base."""
    judged: int
    """Sentences at the end of the sample that judge, and are not trained on."""
    seeds: int
    note: str
    """Printed below the table; {steps} and {judged} stand for their numbers."""


@dataclass(frozen=True)
class Laboratory:
    """The table whose columns are temperatures, and what is compared."""

    table: Table
    systems: Mapping[str, str]
    """The rows that are run at all temperatures, with that of their paper."""
    published: Mapping[str, float]
    """For some systems, the published change of the mean of the seven sets."""
    comparisons: tuple[Comparison, ...]
    small: Small
    own: tuple[str, ...] = ()
    """The rows of the user's file."""

    def columns(self, row: str) -> tuple[str, ...]:
        """Returns the temperatures of a row, or the values of its grid. The first row is trained at those of the user's
        rows, too, which are left out here."""
        known = next(each for each in self.table.rows if each.name == row)
        kept = self.table.columns if row == FIRST else known.recipes
        return tuple(column for column in known.recipes if column is not None and column in kept)

    def own_tau(self, row: str) -> str:
        """Returns the temperature of the paper of a row, which is that of its first system; or the first value of its
        grid."""
        names = [name for name in self.systems if row == name or row.startswith((f"{name}, ", f"{name} + "))]
        return self.systems[max(names, key=len)]

    def same(self, row: str, column: str, other: str = FIRST) -> str:
        """Returns the column of another row, by default the first one, that a column of a row is compared with: that of
        the same temperature, or if there is none, as for a loss without one, that of its paper."""
        known = {each.name: each.recipes for each in self.table.rows}
        tau = f"{known[row][column].settings.get('temperature', math.nan):g}"
        return tau if tau in known[other] else self.systems[other]

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
        taus = dict.fromkeys([*self.table.columns, *(tau for name in systems for tau in self.columns(name))])
        keys += [(name, tau, 0) for tau in taus for name in systems if tau in self.columns(name)]
        runs = [(name, tau) for name in systems for tau in (self.systems[name], best.get(name)) if tau is not None]
        runs += [(FIRST, self.same(name, self.systems[name])) for name in systems if name in self.own]
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
        rows = sorted(trained_rows(cell.recipe for cell in cells))
        return {TRAINED + row: self.cell(row, self.systems[row], 0) for row in rows}


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings: tables by key, lists are joined without repetition, and values of ``""`` are left out."""
    found = dict(first)
    for key, value in second.items():
        if isinstance(value, dict):
            value = _joined(found.get(key, {}), value)
        elif isinstance(value, list):
            value = [*value, *(each for each in found.get(key, ()) if each not in value)]
        found[key] = value
    return {key: value for key, value in found.items() if value != ""}


@cache
def laboratory(file: Path | None = None, imports: tuple[str, ...] = ()) -> Laboratory:
    """Returns the laboratory with the further systems of a file, which use the methods of ``imports``."""
    known = resource("effects.toml")
    more = [] if file is None else read_rows(file, known, BEFORE)
    common, columns = known["settings"], tuple(known["columns"])
    settings: dict[str, dict[str, Any]] = {}
    grids: dict[str, dict[str, dict[str, Any]]] = {}  # changed settings by row and column
    for each in [*known["rows"], *more]:
        own = {**each.get("settings", {}), **({"imports": list(imports)} if each in more and imports else {})}
        settings[each["name"]] = _joined(settings.get(each.get("like", ""), common), own)
        grids[each["name"]] = _grid(each, settings[each["name"]], columns)
    named = {each["name"]: f"{each.get('tau', 0.05):g}" for each in [*known["rows"], *more]}
    systems = {name: tau if tau in grids[name] else next(iter(grids[name])) for name, tau in named.items()}
    taus = dict(systems)
    for name, changes in known["changes"].items():
        settings |= {f"{name}, {change}": _joined(settings[name], own) for change, own in changes.items()}
        taus |= {f"{name}, {change}": systems[name] for change in changes}
    for each in more:  # whose temperatures the first row has, too
        for change in grids[each["name"]].values():
            tau = merged(settings[each["name"]], change).get("temperature")
            if tau is not None:
                grids[FIRST].setdefault(f"{tau:g}", {"temperature": tau})
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
            recipes={
                column: Recipe(None, merged(own, change))
                for column, change in (grids.get(name) or _grid({}, own, columns)).items()
            },
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
    changes = {
        name: published_value(*of, "Avg.") - published_value(*reference, "Avg.")
        for name, (of, reference) in published.items()
    }
    changes |= {each["name"]: each["published"]["change"] for each in more if "published" in each}
    whole = Table("effects", known["source"], known["metric"], columns, tuple(rows), known["suite"])
    small = Small(**{**known["small"], "rows": tuple(known["small"]["rows"])})
    lab = Laboratory(whole, systems, changes, tuple(comparisons), small, tuple(each["name"] for each in more))
    for name in lab.own:
        _check_folders(lab.table, name, f"--rows {file}: row {name}")
        _check_trained(lab, name, f"--rows {file}: row {name}")
    for each in more:
        name, tau = each["name"], systems[each["name"]]
        for rival in each.get("rivals", ()):
            pair = (Line(rival, rival, lab.same(name, tau, rival), None), Line(name, name, tau, None))
            comparisons.append(Comparison(f"{name} against {rival}: system", "mean", pair))
    return replace(lab, comparisons=tuple(comparisons))


def _check_folders(table: Table, name: str, where: str) -> None:
    """Raises ``InputError`` if two runs would have the same folder, of which one is of the row."""
    cells = [Cell(table, row, column, recipe, 0) for row in table.rows for column, recipe in row.recipes.items()]
    count = Counter(cell.folder for cell in cells)
    if doubled := next((cell.folder for cell in cells if cell.row.name == name and count[cell.folder] > 1), ""):
        raise InputError(
            f"{where}: two runs would have the folder {doubled}, in which only letters, digits and dots differ; choose "
            "another name, or other values of grid"
        )


def _check_trained(lab: Laboratory, name: str, where: str) -> None:
    """Raises ``InputError`` if a row needs the encoder of no system, or of one that needs such encoders itself."""
    known = {row.name: row.recipes.values() for row in lab.table.rows if row.name in lab.systems}
    for needed in trained_rows(known[name]):
        if needed not in known or needed == name or trained_rows(known[needed]):
            simple = [other for other, recipes in known.items() if other != name and not trained_rows(recipes)]
            raise InputError(
                f"{where}: {{trained {needed}}} must name a system that needs no trained encoder itself; choose one of "
                f"{', '.join(simple)}"
            )


def trained_rows(recipes: Iterable[Recipe]) -> list[str]:
    """Returns the rows whose encoders the recipes of a row need."""
    names = dict.fromkeys(name for recipe in recipes for name in recipe.needs() if name.startswith(TRAINED))
    return [name.removeprefix(TRAINED) for name in names]


def _grid(row: Mapping[str, Any], settings: Mapping[str, Any], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the changed settings of a row by column: those of its grid, else the temperatures if its loss is
    contrastive, else none."""
    contrastive = settings["loss"] in CONTRASTIVE_LOSSES
    own = {"temperature": float(row.get("tau", 0.05))} if contrastive else {}
    if grid := row.get("grid"):
        found = {}
        for values in product(*grid.values()):
            change: dict[str, Any] = dict(own)
            for name, value in zip(grid, values, strict=True):
                method, _, option = name.rpartition(".")
                change = merged(change, {method: {option: value}} if method else {option: value})
            found[", ".join(f"{name} {value}" for name, value in zip(grid, values, strict=True))] = change
        return found
    if not contrastive:
        return {OWN: {}}
    taus = dict.fromkeys([*columns, *([f"{row['tau']:g}"] if "tau" in row else [])])
    return {tau: {"temperature": float(tau)} for tau in taus}


def is_tau(column: str) -> bool:
    """Whether a column is a temperature, not values of a grid."""
    return re.fullmatch(r"[\d.e-]+", column) is not None


@cache
def published_value(table: str, method: str, column: str) -> float:
    """Returns a published value of BERT-base."""
    found = find_table(table)
    row = next(row for row in found.rows if row.method == method and row.model in ("bert-base-uncased", ""))
    return row.values[found.columns.index(column)]


def known_tables() -> dict[str, Table]:
    """Returns the published tables, and that of the laboratory, by name."""
    return tables() | {"effects": laboratory().table}
