"""The tables: what their rows train and evaluate, and the published values.

``tables/published.toml`` holds the published tables cell by cell; ``tables/recipes.toml`` states what is trained and
evaluated for each row. A table with recipes but without published values was made for cse; it is not from a paper.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from cse.errors import InputError, unknown

Printed = tuple[list[str], list[list[str]]]
"""A table as it is printed: names of columns, and rows of cells."""


@dataclass(frozen=True)
class Recipe:
    """What is trained and evaluated for a row, or for one of its columns."""

    preset: str | None
    """Preset of the run; None if ``encoder`` is given, or if the run uses the defaults of the model."""
    settings: Mapping[str, Any]
    """Values of ``TrainConfig`` that are set in addition to the preset."""
    encoder: str | None = None
    """Encoder that is evaluated without training, named as in ``cse eval``."""
    pooler: str | None = None
    """Pooling of ``encoder``; None: its default."""
    labelled: bool = False
    """Whether the run is trained on labelled pairs, not on the corpus."""

    def names_model(self, method: str, option: str) -> bool:
        """Whether an option of a method names one of the user's models, by a placeholder."""
        return bool(_placeholders(self.settings.get(method, {}).get(option)))

    def needs(self, setting: str | None = None) -> list[str]:
        """Returns the names of placeholders like "{paraphrases}", which are filled in by ``--file NAME=PATH``."""
        return sorted(set(_placeholders(self.settings.get(setting) if setting else [self.encoder, self.settings])))


def _placeholders(value: Any) -> list[str]:
    """Returns the names of the placeholders in a value, and in the values in it."""
    if isinstance(value, str):
        return re.findall(r"{([^{}]+)}", value)
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [name for inner in values for name in _placeholders(inner)]


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    method: str
    model: str
    values: tuple[float, ...]
    """Published values, one per column; NaN where there is none."""
    sd: tuple[float, ...] = ()
    """Published standard deviations, if any."""
    note: str = ""
    remark: str = ""
    """What a reader of our values has to know, such as that test texts were trained on; empty: nothing."""
    misprint: str = ""
    """How the values in the paper contradict each other, if they do."""
    reason: str = ""
    """Why there are only published values, if the reason is known."""
    recipes: Mapping[str | None, Recipe] = field(default_factory=dict)
    """Recipes by column; the key None stands for one run for all columns. Empty if there are only published values."""

    @property
    def name(self) -> str:
        """Method and model."""
        return f"{self.method}, {self.model}" if self.model else self.method

    @property
    def status(self) -> str:
        """What is printed instead of our values if the row has no recipe."""
        return f"published only: {self.reason}" if self.reason else "published only"


@dataclass(frozen=True)
class Table:
    """A published table, and how it is reproduced."""

    name: str
    source: str
    metric: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    suite: str = ""
    """How cells are scored, as a key of ``scores.SUITES``; empty if no row of the table can be reproduced."""
    note: str = ""
    """A remark on the published values."""

    def needs(self, setting: str | None = None) -> set[str]:
        """Returns the names of the placeholders in all recipes, or in one setting of them; see ``Recipe.needs``."""
        return {name for row in self.rows for recipe in row.recipes.values() for name in recipe.needs(setting)}

    def within(self, data: Path) -> Table:
        """Returns the table with the columns of the collections that ``data`` has, if its suite is ``domain``."""
        if self.suite != "domain":
            return self
        columns = tuple(name for name in self.columns if (data / name).exists())
        if not columns:
            raise InputError(f"--data {data} has none of the collections {', '.join(self.columns)}")
        kept = [place for place, name in enumerate(self.columns) if name in columns]
        rows = [
            replace(
                row,
                values=tuple(row.values[place] for place in kept),
                recipes={column: recipe for column, recipe in row.recipes.items() if column in columns},
            )
            for row in self.rows
        ]
        return replace(self, columns=columns, rows=tuple(rows))

    def find_rows(self, names: Sequence[str]) -> list[Row]:
        """Returns the rows with the given names, or all rows if no names are given."""
        rows = []
        for name in names:
            some = [row for row in self.rows if name in (row.method, row.name)]
            some = some or [row for row in self.rows if fnmatchcase(row.name, name)]
            if not some:
                raise unknown("--row", name, [row.name for row in self.rows])
            rows += some
        return [*{row.name: row for row in rows}.values()] or list(self.rows)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings; values in ``second`` take precedence, and tables of options are merged by key."""
    table = dict(first)
    for key, value in second.items():
        table[key] = {**table[key], **value} if isinstance(value, dict) and isinstance(table.get(key), dict) else value
    return table


@cache
def tables() -> dict[str, Table]:
    """Returns all tables by name."""
    published = {table["id"]: table for table in resource("published.toml")["table"]}
    recipes = resource("recipes.toml")
    reasons = recipes.pop("reasons")
    return {name: _table(name, published.get(name), recipes.get(name, {}), reasons) for name in [*recipes, *published]}


def find_table(name: str) -> Table:
    """Returns a table; raises ``InputError`` if no table has this name."""
    if name not in tables():
        raise unknown("TABLE", name, tables())
    return tables()[name]


def resource(name: str) -> dict[str, Any]:
    """Returns a file of ``cse_papers/tables``."""
    return tomllib.loads((files("cse_papers") / "tables" / name).read_text(encoding="utf8"))


def _table(name: str, published: dict[str, Any] | None, recipes: dict[str, Any], reasons: dict[str, str]) -> Table:
    known = published or recipes
    columns = tuple(known["columns"])
    changes = recipes.get("changes", {})
    by_key = {(entry["method"], entry.get("model", "")): entry for entry in recipes.get("rows", ())}
    declared = published["rows"] if published else recipes["rows"]
    if without := by_key.keys() - {(row["method"], row.get("model", "")) for row in declared}:
        raise ValueError(f"recipes.toml: {name} has a recipe for {min(without)}, which is no row of published.toml")
    rows = []
    for row in declared:
        key = (row["method"], row.get("model", ""))
        recipe = by_key.get(key, {})
        parsed = _recipes(recipe, changes) if recipe else {}
        check = row.get("check", "ok")
        rows.append(
            Row(
                *key,
                values=tuple(map(float, row.get("values", [math.nan] * len(columns)))),
                sd=tuple(map(float, row.get("sd", ()))),
                note=row.get("note", ""),
                remark=recipe.get("remark", ""),
                misprint="" if check == "ok" else check,
                reason=next((text for start, text in reasons.items() if row["method"].startswith(start)), ""),
                recipes=parsed,
            )
        )
    return Table(
        name,
        known["source"],
        known["metric"],
        columns,
        tuple(rows),
        recipes.get("suite", ""),
        known.get("note", ""),
    )


def _recipes(row: dict[str, Any], changes: dict[str, Any]) -> dict[str | None, Recipe]:
    """Returns the recipes of a row: one for all columns or, if the columns stand for settings, one per column."""
    base = row.get("settings", {})
    if not changes:
        return {None: _recipe(row, base)}
    left_out = set(row.get("published_only", ()))
    return {
        column: _recipe({**row, "preset": row.get("presets", {}).get(column, row.get("preset"))}, merged(base, change))
        for column, change in changes.items()
        if column not in left_out
    }


def _recipe(row: dict[str, Any], settings: dict[str, Any]) -> Recipe:
    return Recipe(row.get("preset"), settings, row.get("encoder"), row.get("pooler"), row.get("labelled", False))
