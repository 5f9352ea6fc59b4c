"""What a person gave for a run: keyword arguments, flags or a configuration file, by flat name and as ``TrainConfig``.

The flat name of a setting is its name, such as ``lr``, and for an option of a method, ``una.beta``.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

import tomli_w

from ... import io
from ...augment import AUGMENTATIONS
from ...errors import InputError, did_you_mean, for_python, shown
from ...io import repaired
from ...registry import check_imports, import_methods
from .names import SETTINGS, Settings, method_flags
from .refusals import refusals


class TrainConfig(Settings):
    """Training configuration: the settings of a run that were given, and the options of the methods that they name.

    A setting that was not given is None if its value depends on preset, loss and model; see
    ``cse.training.settings.resolve``. Invalid values raise ``InputError``. Settings are given as keyword arguments:
    ``una=True`` enables UNA, and ``una={"beta": 0.3}`` sets its options.

    Sources: SimCSE (Gao et al. 2021), Focal-InfoNCE (Hou and Li 2023), MixCSE (Zhang et al. 2022), UNA (Shu and
    Lampos 2024).
    """

    @for_python
    def __init__(self, /, **values: Any) -> None:
        """Checks types and ranges; raises ``InputError`` with the flag of the first invalid setting."""
        values = {name: plain(value) for name, value in flat(values).items()}
        for name in SETTINGS.keys() & values.keys():
            if SETTINGS[name].opt.paths and isinstance(values[name], str):
                values[name] = (values[name],)
        for file in SETTINGS["imports"].check(values.get("imports") or ()):
            import_methods(file)  # registers methods before their names are looked up
        options = tables_of(values)
        for name in [name for name in values if "." not in name and name not in (*SETTINGS, "given")]:
            used = values.pop(name)  # una=True
            if name not in AUGMENTATIONS:
                known = (*SETTINGS, *method_flags(), *AUGMENTATIONS.flagged())
                raise InputError(f"unknown key {name!r}{did_you_mean(name, known)}; see cse train --help-all")
            elif isinstance(used, bool):
                switch(values, "negatives", name, used)
            elif used is not None:
                raise InputError(f"--{name} must be true or false, or a table of options, got {used!r}")
        if (given := values.get("given")) is not None:
            if not isinstance(given, dict):
                raise InputError(f"given must be a table of settings, got {shown(given)}")
            given = TrainConfig(**given).values()
        checked = {
            name: option.check(values[name]) if name in values else option.default for name, option in SETTINGS.items()
        }
        names = {*values, *(["options"] if options else [])}
        self._fill({**checked, "options": options, "given": given}, frozenset(names))
        for name, table in options.items():
            known = vars(self.options_of(name))
            options[name] = {key: known[key] for key in table}
        for problem in filter(None, refusals(self)):
            raise InputError(problem)

    def _fill(self, values: Mapping[str, Any], names: frozenset[str]) -> None:
        for name, value in {**values, "_names": names}.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return False
        return all(getattr(other, name) == getattr(self, name) for name in (*SETTINGS, "options", "given"))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.values().items())})"

    def values(self) -> dict[str, Any]:
        """Returns the values that were set, by name, without ``given``."""
        return {name: getattr(self, name) for name in (*SETTINGS, "options") if name in self._names}  # type: ignore[attr-defined]

    def replace(self, **values: Any) -> Self:
        """Returns a validated copy in which these values are changed."""
        return type(self)(**{**self.values(), "given": self.given, **values})

    def copied(self, **values: Any) -> Self:
        """Returns a copy in which these values are changed without being validated."""
        copy = object.__new__(type(self))
        copy._fill({**vars(self), **values}, self._names | values.keys())  # type: ignore[attr-defined]
        return copy

    def to_toml(self) -> str:
        """Returns the configuration as TOML without None values; options of methods are tables at the end."""
        return to_toml({name: getattr(self, name) for name in (*SETTINGS, "options")}, self.given)

    @classmethod
    def from_toml(cls, path: str | Path) -> Self:
        """Reads a TOML file, as written by ``to_toml``; raises ``InputError`` for an invalid file, key or value."""
        return cls(**read_toml(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """Reads and validates a configuration file; raises ``InputError`` with the file and the invalid key."""
    values = io.read_toml(path, dict[str, Any])
    try:
        given = values.get("given")
        for table in (values, given if isinstance(given, dict) else {}):  # before methods are imported
            check_imports(SETTINGS["imports"].check(table.get("imports", [])))
        TrainConfig(**values)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return values


def to_toml(values: Mapping[str, Any], given: Mapping[str, Any] | None) -> str:
    """Returns values and the table ``given`` as TOML, without None; options of methods are tables at the end."""
    stored = _tables(values) | ({} if given is None else {"given": _tables(given)})
    return repaired(tomli_w.dumps(stored))


def _tables(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values without None, with the options of each method as a table at the end."""
    known = merge(values)
    return {name: value for name, value in known.items() if "." not in name} | tables_of(known)


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
        elif name in SETTINGS or name not in method_flags():
            found[name] = value
        elif value is not None:
            method, option, _, named_by = method_flags()[name]
            if option.opt.enables and value != 0:
                option.check(value)
            if option.opt.enables:
                switch(found, named_by, method, bool(value))
            if value or not option.opt.enables:
                found[f"{method}.{option.name}"] = value
            else:
                found = {key: item for key, item in found.items() if not key.startswith(f"{method}.")}
    return found


def switch(values: dict[str, Any], setting: str, method: str, on: bool) -> None:
    """Adds a method to the setting that names it, or removes it."""
    others = [name for name in SETTINGS[setting].check(values.get(setting) or ()) if name != method]
    values[setting] = (*others, *([method] if on else []))


def merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of all layers by flat name, without None; the first layer takes precedence."""
    merged: dict[str, Any] = {}
    for layer in reversed(layers):
        merged |= {name: value for name, value in flat(layer).items() if value is not None}
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
