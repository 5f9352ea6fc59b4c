"""Converts the values that a user gives for a training configuration to the form in which they are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from os import PathLike, fspath
from typing import Any

from ..augment import AUGMENTATIONS
from ..errors import InputError
from .method_flags import method_flags
from .settings import Paths, hints, marker

__all__ = ["given_forms", "tables", "with_tables"]


def tables(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the options by method, without None values and without empty tables."""
    kept = {name: {k: v for k, v in table.items() if v is not None} for name, table in options.items()}
    return {name: table for name, table in kept.items() if table}


def given_forms(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Returns values in the form in which they are stored.

    Paths become text, and lists become tuples. A table of options (``una={"beta": 0.3}``) becomes an entry of
    ``options``, and so does an option with its own flag (``margin=0.2``). ``una=True`` adds ``"una"`` to ``negatives``,
    and ``una=False`` removes it.

    Args:
        values: Values by name.
        known: Names of settings.
    """
    values = with_tables({name: _plain(name, value) for name, value in values.items()}, known)
    for name in [name for name in values if name not in known and name in AUGMENTATIONS]:
        used = values.pop(name)
        if used is None:
            continue
        if not isinstance(used, bool):
            raise InputError(f"--{name}: must be true or false, or a table of options, got {used!r}")
        named = values.get("negatives") or ()
        if not isinstance(named, (list, tuple)):
            raise InputError(f"--negatives: must be a list of names, got {named!r}")
        others = tuple(each for each in named if each != name)
        values["negatives"] = (*others, name) if used else others
    return values


def with_tables(values: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Moves the options of methods to the entry ``options``, and returns all values.

    The options may be given as tables, or under the names of their flags.

    Args:
        values: Values by name.
        known: Names of settings.
    """
    values, options = dict(values), values.get("options") or {}
    if not isinstance(options, Mapping):
        return values
    options = {name: dict(table) if isinstance(table, Mapping) else table for name, table in options.items()}
    flags = {each.keyword: each for each in method_flags()}
    for name in [name for name in values if name not in ("options", "given")]:
        # A table always holds options, even if a setting has the same name: [prompt] holds the options of a method, and
        # prompt = "query: " is a setting.
        if isinstance(values[name], Mapping):
            options[name] = {**options.get(name, {}), **values.pop(name)}
        elif name not in known and name in flags and values[name] is not None:
            options.setdefault(flags[name].method, {})[flags[name].option] = values.pop(name)
    return {**values, "options": options} if options else values


def _plain(name: str, value: Any) -> Any:
    """Returns the stored form of a value: paths as text, lists as tuples.

    A single path becomes a tuple where a list is expected.
    """
    if isinstance(value, PathLike):
        value = fspath(value)
    if isinstance(value, list) or (isinstance(value, tuple) and name in hints()):
        return tuple(fspath(each) if isinstance(each, PathLike) else each for each in value)
    if isinstance(value, str) and name in hints() and marker(hints()[name], Paths) is not None:
        return (value,)
    return value
