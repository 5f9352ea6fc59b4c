"""Values of settings by flat name, which is the name of a setting, such as ``lr``, or for an option, ``una.beta``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

import tomli_w

from ...errors import InputError, shown
from ...io import repaired
from .names import MORE_TERMS, NO_TERMS, SETTINGS, TERMS, method_flags


def to_toml(values: Mapping[str, Any], given: Mapping[str, Any] | None) -> str:
    """Returns values and the table ``given`` as TOML, without None; options of methods are tables at the end."""
    stored = _tables(values) | ({} if given is None else {"given": _tables(given)})
    return repaired(tomli_w.dumps(stored))


def _tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values without None, with the options of each method as a table at the end."""
    known = merge(values)
    tables = tables_of(known)
    same = {name: table for name, table in tables.items() if name in SETTINGS}  # a table would replace the setting
    others = {name: table for name, table in tables.items() if name not in same}
    plain = {name: value for name, value in known.items() if "." not in name}
    return plain | others | ({"options": same} if same else {})


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values by flat name: ``una.beta`` is the option ``beta`` of the method ``una``.

    Options of methods may be given in the table ``options``, by method, as tables of their own
    (``una={"beta": 0.3}``), or under the names of their flags (``beta=0.3``). A flag that enables its method
    (``mlm_weight=0.1``) adds the method to the setting that names it; 0 or an empty value of its type removes it.
    """
    found: dict[str, Any] = {}
    for name in sorted(values, key=lambda name: (name not in SETTINGS, name != "options")):
        value = values[name]
        if name == "given":
            found[name] = value
        elif name == "options" and value is None:
            continue
        elif isinstance(value, Mapping) or name == "options":
            # A table always holds options, even if a setting has the same name: [prompt] holds the options of a method,
            # and prompt = "query: " is a setting.
            tables = value if name == "options" else {name: value}
            if not isinstance(tables, Mapping) or not all(isinstance(table, Mapping) for table in tables.values()):
                raise InputError(f"options must hold one table per method, such as [options.una], got {shown(tables)}")
            if empty := [method for method, table in tables.items() if not table]:
                raise InputError(f"the table {empty[0]} holds no option; remove it")
            found |= {f"{method}.{key}": item for method, table in tables.items() for key, item in table.items()}
        elif name == MORE_TERMS and isinstance(value, (list, tuple)) and NO_TERMS in value:
            found[TERMS] = tuple(each for each in value if each != NO_TERMS)
        elif name in SETTINGS or name not in method_flags():
            found[name] = value
        elif value is not None:
            method, option, _, named_by = method_flags()[name]
            if option.opt.enables and value != 0:
                option.check(value)
            if option.opt.enables:
                _switch_by_flag(found, named_by, method, bool(value))
            if value or not option.opt.enables:
                found[f"{method}.{option.name}"] = value
            else:
                found = {key: item for key, item in found.items() if not key.startswith(f"{method}.")}
    return found


def _switch_by_flag(values: dict[str, Any], setting: str, method: str, on: bool) -> None:
    """Adds a method that a flag enables, or removes it; a term is added to those of the preset or the recipe, unless
    all terms are given."""
    if setting == TERMS:
        given = [name for name in (TERMS, MORE_TERMS) if name in values]
        for name in given if not on else given[:1] or [MORE_TERMS]:
            switch(values, name, method, on)
    else:
        switch(values, setting, method, on)


def switch(values: dict[str, Any], setting: str, method: str, on: bool) -> None:
    """Adds a method to the setting that names it, or removes it."""
    others = [name for name in listed(values, setting) if name != method]
    values[setting] = (*others, *([method] if on else []))


def listed(values: Mapping[str, Any], setting: str) -> Sequence[Any]:
    """Returns the methods that a setting names, not checked: those of ``imports`` may be unknown yet."""
    value = values.get(setting) or ()
    return value if isinstance(value, (list, tuple)) else tuple(SETTINGS[setting].check(value))


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all layers by flat name, without None; the first layer takes precedence.

    Further loss terms are added to those of later layers, unless the layer has all terms.
    """
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        own = {name: value for name, value in flat(layer).items() if value is not None}
        if TERMS in own:
            merged.pop(MORE_TERMS, None)
        elif MORE_TERMS in own:
            own[MORE_TERMS] = tuple(dict.fromkeys((*listed(merged, MORE_TERMS), *listed(own, MORE_TERMS))))
        merged |= own
    return merged


def tables_of(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the options among values by flat name, as tables by method."""
    tables: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        method, dot, key = name.rpartition(".")
        if dot:
            tables.setdefault(method, {})[key] = value
    return tables


def plain(value: Any) -> Any:
    """Returns a value with paths as text, and lists as tuples."""
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    return fspath(value) if isinstance(value, PathLike) else value


def other_limit(values: Mapping[str, Any]) -> str | None:
    """Returns the one of ``epochs`` and ``max_steps`` that must not be filled in, because only the other was given."""
    limits = [name for name in ("epochs", "max_steps") if values.get(name) is not None]
    return {"epochs": "max_steps", "max_steps": "epochs"}[limits[0]] if len(limits) == 1 else None
