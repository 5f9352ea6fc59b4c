"""All settings of a run, and the values that a user gives for them: flags of method options, form of stored values.

The docstring of ``cse.training.parts.fields`` says what is read from the declarations of the settings. An option of a
method may have its own command-line flag, like ``--beta`` for ``una.beta``. This module imports neither
pydantic nor NumPy, so that the command line starts quickly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from functools import cache
from os import PathLike, fspath
from typing import Any, get_type_hints

from ...augment import AUGMENTATIONS
from ...errors import InputError
from ...features import ENCODER_METHODS
from ...losses import LOSS_TERMS
from ...registry import Note, Registry
from ..parts.data import Data, ResolvedData
from ..parts.encoder import Model, ResolvedModel
from ..parts.evaluation import Evaluation, ResolvedEvaluation
from ..parts.fields import Paths, Shown, marker
from ..parts.loss import Loss, ResolvedLoss
from ..parts.methods import Augmentation, ResolvedAugmentation
from ..parts.optimisation import Optimisation, ResolvedOptimisation
from ..parts.output import Output

GROUPS: tuple[type[Any], ...] = (Data, Model, Augmentation, Loss, Optimisation, Evaluation, Output)
_RESOLVED = (
    ResolvedData,
    ResolvedModel,
    ResolvedAugmentation,
    ResolvedLoss,
    ResolvedOptimisation,
    ResolvedEvaluation,
)
REQUIRED = [name for group in _RESOLVED for name in group.__annotations__]
"""Names of the settings that have a value in every run, given or by default."""


class Settings(Data, Model, Augmentation, Loss, Optimisation, Evaluation, Output):
    """All settings."""


@cache
def hints() -> dict[str, Any]:
    """Returns the annotated type of each setting by name, in the order of declaration."""
    return {name: hint for group in GROUPS for name, hint in get_type_hints(group, include_extras=True).items()}


def flag(name: object) -> str:
    """Returns the command-line flag of a setting; any other name is converted to the form of a flag."""
    shown = marker(hints()[str(name)], Shown) if str(name) in hints() else None
    return (shown and shown.flag) or "--" + str(name).replace("_", "-")


# Registries whose methods may have flags. Each stands with the class of settings under whose heading the help lists
# these flags, and with the setting that names the methods.
PLACES: tuple[tuple[Registry[Any], type[Any], str], ...] = (
    (AUGMENTATIONS, Augmentation, "negatives"),
    (ENCODER_METHODS, Model, "encoder_methods"),
    (LOSS_TERMS, Loss, "loss_terms"),
)


@dataclass(frozen=True)
class MethodFlag:
    """An option of a method, with its own command-line flag."""

    method: str
    option: str
    hint: Any
    """The annotated type of the option."""
    default: Any
    note: Note
    group: type[Any]
    """The class of settings under whose heading the option is shown."""
    named_by: str
    """The setting that names the method."""

    @property
    def keyword(self) -> str:
        """The option's name as a keyword argument of the configuration, and in configuration files."""
        return self.note.flag.removeprefix("--").replace("-", "_")


@cache
def method_flags() -> tuple[MethodFlag, ...]:
    """Returns a ``MethodFlag`` for each flag of a built-in method, in the order of registries, methods and options."""
    found = []
    for table, group, named_by in PLACES:
        for method, kind in table.flagged().items():
            annotations = get_type_hints(kind, include_extras=True)
            for each in fields(kind):
                note = marker(annotations[each.name], Note)
                if note is not None and note.flag:
                    found.append(
                        MethodFlag(method, each.name, annotations[each.name], each.default, note, group, named_by)
                    )
    return tuple(found)


def switches() -> dict[str, str]:
    """Returns, by name, the help texts of the augmentations that have flags ``--NAME`` and ``--no-NAME``."""
    return {name: (kind.__doc__ or "").split("\n\n")[0] for name, kind in AUGMENTATIONS.flagged().items()}


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
