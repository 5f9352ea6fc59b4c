"""The published tables, and the recipes of their rows.

``resources/published.toml`` holds the tables cell by cell; ``resources/recipes.toml`` states what is trained and
evaluated for each row. A table with recipes but without published values was made for cse; it is not from a paper.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from ..errors import InputError, unknown

# Factors that convert scores x 100 to the scale of a table, by the name of the scale in published.toml.
SCALES = {"percent": 1.0, "unit": 0.01, "raw": 1.0}


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

    def needs(self) -> list[str]:
        """Returns the names of placeholders like "{paraphrases}", which are filled in by ``--file NAME=PATH``."""
        return sorted(set(_placeholders([self.encoder, dict(self.settings)])))


def _placeholders(value: Any) -> list[str]:
    """Returns the names of the placeholders in a value, and in the values in it."""
    if isinstance(value, str):
        return re.findall(r"{([^{}]+)}", value)
    each = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    return [name for inner in each for name in _placeholders(inner)]


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
    recipes: Mapping[str | None, Recipe] = field(default_factory=dict)
    """Recipes by column; the key None stands for one run for all columns. Empty if there are only published values."""

    @property
    def name(self) -> str:
        """Method and model."""
        return f"{self.method}, {self.model}" if self.model else self.method


@dataclass(frozen=True)
class Table:
    """A published table, and how it is reproduced."""

    name: str
    source: str
    metric: str
    scale: float
    """Factor that converts scores x 100 to the scale of the table."""
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    suite: str = ""
    """How cells are scored, as a key of ``suites.SUITES``; empty if no row of the table can be reproduced."""
    note: str = ""
    """A remark on the published values."""

    def needs(self) -> set[str]:
        """Returns the names of the placeholders in all recipes; see ``Recipe.needs``."""
        return {name for row in self.rows for recipe in row.recipes.values() for name in recipe.needs()}

    def find_rows(self, names: Sequence[str]) -> list[Row]:
        """Returns the rows with the given names, or all rows if no names are given.

        A name is a method, or a method and a model. Raises ``InputError`` for an unknown name.
        """
        found = []
        for name in names:
            some = [row for row in self.rows if name in (row.method, row.name)]
            if not some:
                raise InputError(unknown("--row", name, [row.name for row in self.rows]))
            found += some
        return found or list(self.rows)


def merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings; values in ``second`` take precedence, and tables of options are merged by key."""
    found = dict(first)
    for key, value in second.items():
        found[key] = {**found[key], **value} if isinstance(value, dict) and isinstance(found.get(key), dict) else value
    return found


@cache
def tables() -> dict[str, Table]:
    """Returns all tables by name."""
    published = {each["id"]: each for each in _read("published.toml")["table"]}
    recipes = _read("recipes.toml")
    return {name: _table(name, published.get(name), recipes.get(name, {})) for name in [*recipes, *published]}


def find_table(name: str) -> Table:
    """Returns a table; raises ``InputError`` if no table has this name."""
    if name not in tables():
        raise InputError(unknown("TABLE", name, tables()))
    return tables()[name]


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((files("cse") / "resources" / name).read_text(encoding="utf8"))


def _table(name: str, published: dict[str, Any] | None, recipes: dict[str, Any]) -> Table:
    known = published or recipes
    columns = tuple(known["columns"])
    changes = recipes.get("changes", {})
    given = {(each["method"], each.get("model", "")): each for each in recipes.get("rows", ())}
    rows = []
    for row in published["rows"] if published else recipes["rows"]:
        key = (row["method"], row.get("model", ""))
        recipe = given.get(key, {})
        found = _recipes(recipe, changes) if recipe else {}
        check = row.get("check", "ok")
        rows.append(
            Row(
                *key,
                values=tuple(map(float, row.get("values", [math.nan] * len(columns)))),
                sd=tuple(map(float, row.get("sd", ()))),
                note=row.get("note", ""),
                remark=recipe.get("remark", ""),
                misprint="" if check == "ok" else check,
                recipes=found,
            )
        )
    lost = given.keys() - {(row.method, row.model) for row in rows}
    if lost:
        raise ValueError(f"recipes.toml: {name} has no row {min(lost)}")
    return Table(
        name,
        known["source"],
        known["metric"],
        SCALES[known["scale"]],
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
