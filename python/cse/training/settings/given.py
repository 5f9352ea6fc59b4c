"""What a person gave for a run, as ``TrainConfig``: keyword arguments, flags or a configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from ... import io
from ...augment import AUGMENTATIONS
from ...errors import InputError, did_you_mean, for_python, shown
from ...registry import check_imports, import_methods
from .flat import flat, merge, other_limit, plain, switch, tables_of, to_toml
from .names import SAME_RESULTS, SETTINGS, Settings, method_flags
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
        """Returns a validated copy in which these values are changed.

        Of the configuration of a run, read from its ``config.toml``, it is that with which ``cse train --config`` and
        these values repeats the run: if they change what is computed, only the values that were given for it are kept,
        and the others are derived again.
        """
        if self.given is None or "given" in values:
            return type(self)(**{**self.values(), "given": self.given, **values})
        kept, given = repeated({**self.values(), "given": self.given}, values)
        if "options" in values:  # all of them
            kept = {name: value for name, value in kept.items() if "." not in name}
        return type(self)(**{**kept, **values}, given=given)

    def copied(self, **values: Any) -> Self:
        """Returns a copy in which these values are changed without being validated."""
        copy = object.__new__(type(self))
        copy._fill({**vars(self), **values}, self._names | values.keys())  # type: ignore[attr-defined]
        return copy

    def to_toml(self) -> str:
        """Returns the values that were set as TOML, without None; options of methods are tables at the end.

        Defaults are left out: a written default would count as set, and replace the value of a preset.
        """
        return to_toml(self.values(), self.given)

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


def repeated(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the stored values that are to be merged with the changes, and the table ``given`` of the new run.

    If the changes affect what is computed, only the values that the user gave are kept, with None for ``given``: the
    others are derived again. Options of methods that the changes switch off are left out.
    """
    kept = flat({name: value for name, value in stored.items() if name not in ("name", "given")})
    table: dict[str, Any] | None = stored.get("given")
    if table is not None:
        if set(changes) <= SAME_RESULTS:
            return kept, {**table, **changes}
        kept = flat({name: value for name, value in table.items() if name != "name"})
    kept.pop(other_limit(changes) or "", None)
    off = set(TrainConfig(**kept).methods) - set(TrainConfig(**merge(changes, kept)).methods)
    return {name: value for name, value in kept.items() if name.rpartition(".")[0] not in off}, None
