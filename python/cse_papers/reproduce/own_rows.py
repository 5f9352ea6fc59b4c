"""A user's own rows of the laboratory: ``cse reproduce effects --rows FILE.toml``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from cse.errors import InputError
from cse.io import read_toml


class UserChange(TypedDict):
    """A published change of the mean of the seven STS test sets, in points, and where it is published."""

    change: float
    source: str


class UserRow(TypedDict):
    """A row of the file of ``--rows``; ``grid`` has the values of settings and options, such as ``mine.margin``, and
    ``rivals`` the systems that the row is compared with besides the standard loss, if they have its temperature at that
    one."""

    name: str
    like: NotRequired[str]
    tau: NotRequired[float]
    settings: NotRequired[dict[str, Any]]
    grid: NotRequired[dict[str, list[Any]]]
    rivals: NotRequired[list[str]]
    published: NotRequired[UserChange]


class RowsFile(TypedDict):
    rows: list[UserRow]


def read_rows(file: Path, known: Mapping[str, Any], before: str) -> list[dict[str, Any]]:
    """Returns the rows of the user's file. ``known`` is ``tables/effects.toml``, ``before`` the name of the row of the
    base. Raises ``InputError`` for a row whose name is taken, or that the laboratory cannot train."""
    rows: list[dict[str, Any]] = [{**each} for each in read_toml(file, RowsFile)["rows"]]
    likes = [row["name"] for row in known["rows"]]
    taken = [before, *(each["name"] for each in known["rows"])]
    taken += [f"{name}, {change}" for name, changes in known["changes"].items() for change in changes]
    taken += [f"{first} + {name}" for first, names in known["together"].items() for name in names]
    for each in rows:
        name = each["name"]
        unknown_key = next(iter(each.keys() - UserRow.__annotations__), "")
        wrong = f"unknown key {unknown_key}, not one of {', '.join(UserRow.__annotations__)}" if unknown_key else ""
        if name in taken:
            wrong = "the name is taken; choose another one"
        elif "like" in each and each["like"] not in likes:
            wrong = f"like names no row of the laboratory and none above it, {each['like']!r}"
        elif other := next((name for name in each.get("rivals", ()) if name not in likes), ""):
            wrong = f"rivals names no system of the laboratory and none above it, {other!r}"
        elif not each.get("tau", 1) >= 1e-4:
            wrong = f"tau must be at least 0.0001, got {each['tau']}"
        elif not all(each.get("grid", {"": [0]}).values()):
            wrong = "grid has a setting without values"
        elif "temperature" in each.get("settings", {}):
            wrong = "temperature must be given as tau, or in grid"
        if wrong:
            raise InputError(f"--rows {file}: row {name}: {wrong}")
        taken.append(name)
        likes.append(name)
    return rows
