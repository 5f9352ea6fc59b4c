"""Values of settings and of options of methods by flat name: ``lr``, and ``una.beta`` for an option of UNA."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from os import PathLike, fspath
from typing import Any, NamedTuple

from ...augment import AUGMENTATIONS
from ...errors import KEYWORDS, InputError, shown
from ...hooks import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from ...losses import LOSS_TERMS
from ...options import Option, options_of
from ...registry import Registry
from .declared import GROUPS, Loss, Methods, Model

SETTINGS: dict[str, Option] = {option.name: option for group in GROUPS for option in options_of(group)}
"""The settings by name, in the order of declaration."""

KEYWORDS.update({option.flag: name for name, option in SETTINGS.items() if name != "more_loss_terms"})

TABLES: dict[Registry[Any], tuple[str, ...]] = {
    AUGMENTATIONS: ("--positive", "--negative"),
    FEATURE_AUGMENTATIONS: ("--feature-augmentation",),
    ENCODER_METHODS: ("--encoder-method",),
    HOOKS: ("--anchor-hook", "--positive-hook"),
    LOSS_TERMS: ("--loss-term",),
}
"""The registries of methods, with the flags that make a run use a method."""

# Registries whose built-in methods may have flags. Each stands with the group of settings under whose heading the help
# lists these flags, and with the setting that names the methods.
PLACES: tuple[tuple[Registry[Any], type, str], ...] = (
    (AUGMENTATIONS, Methods, "negatives"),
    (ENCODER_METHODS, Model, "encoder_methods"),
    (LOSS_TERMS, Loss, "loss_terms"),
)

# Options of the contrastive loss, and the flags that set them with ``--loss standard``, ``focal`` or ``mixed``.
LOSS_SETTINGS = {
    "objective": "--objective",
    "logits": "--loss",
    "temperature": "--temperature",
    "mixed_negatives": "--mixed-negatives",
}


class MethodFlag(NamedTuple):
    """An option of a method, with its own command-line flag."""

    method: str
    option: Option
    group: type  # the group of settings under whose heading the option is shown
    named_by: str  # the setting that names the method


@cache
def method_flags() -> dict[str, MethodFlag]:
    """Returns the flags of options of built-in methods by keyword, such as ``una_as``, in the order of registries."""
    return {
        option.flag.removeprefix("--").replace("-", "_"): MethodFlag(method, option, group, named_by)
        for table, group, named_by in PLACES
        for method, kind in table.flagged().items()
        for option in options_of(kind)
        if option.opt.flag
    }


def flag(name: str) -> str:
    """Returns the command-line flag of a setting, or of an option of a method; else the name, in the form of a flag."""
    if name in SETTINGS:
        return SETTINGS[name].flag
    method, _, key = name.rpartition(".")
    if not method:
        return "--" + name.replace("_", "-")
    return next(
        (item.option.flag for item in method_flags().values() if (item.method, item.option.name) == (method, key)), name
    )


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
