"""Types of the values of a training configuration, and their forms in files and keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from ..augment import AUGMENTATIONS
from ..errors import InputError, unknown
from ..models.pooling import POOLERS


def path(value: Any) -> Any:
    """Returns a path as text, another value as it is."""
    return fspath(value) if isinstance(value, PathLike) else value


def paths(value: Any) -> Any:
    """Returns a path, or several, as a tuple of texts, another value as it is."""
    if isinstance(value, (str, PathLike)):
        return (fspath(value),)
    return tuple(path(item) for item in value) if isinstance(value, (list, tuple)) else value


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _pooler(value: str) -> str:
    if value not in POOLERS:
        raise unknown("--pooler", value, POOLERS)
    return value


FilePath = Annotated[str, BeforeValidator(path)]
FilePaths = Annotated[tuple[str, ...], BeforeValidator(paths)]
Names = Annotated[tuple[str, ...], BeforeValidator(_tuple)]
NotNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]

# Types of the fields whose defaults depend on the recipe; see cse.training.recipes.
Pooler = Annotated[str, AfterValidator(_pooler)]
Objective = Literal["infonce", "nt-xent"]
Scheduler = Literal["linear", "cosine", "constant"]
MaxLength = Annotated[int, Field(ge=3)]
BatchSize = Annotated[int, Field(ge=2)]
AboveZero = Annotated[float, Field(gt=0)]
AtLeastZero = Annotated[float, Field(ge=0)]
Temperature = Annotated[float, Field(ge=1e-4)]  # below it, logits and their gradients overflow
Share = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(ge=0, lt=1)]


def tables(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the options of methods that have any, without those that are None."""
    kept = {name: {k: v for k, v in table.items() if v is not None} for name, table in options.items()}
    return {name: table for name, table in kept.items() if table}


def flag(name: object) -> str:
    """Returns the command-line flag of a field."""
    return "--" + str(name).replace("_", "-")


def gather_options(values: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """Moves tables that are not fields (``una={"beta": 0.3}``) to ``options``, and ``una=True`` to ``negatives``."""
    values = dict(values)
    options = values.get("options", {})
    if isinstance(options, Mapping):
        options = dict(options)
    for name in [name for name in values if name not in known and name in AUGMENTATIONS]:
        if isinstance(values[name], Mapping):
            continue
        used = values.pop(name)
        if used is None:
            continue
        if not isinstance(used, bool):
            raise InputError(f"--{name}: {used!r} was given, and it must be true or false, or a table of options")
        named = values.get("negatives") or ()
        if not isinstance(named, (list, tuple)):
            raise InputError(f"--negatives: {named!r} was given, and it must be a list of names")
        others = tuple(each for each in named if each != name)
        values["negatives"] = (*others, name) if used else others
    for name in [name for name, value in values.items() if name not in known and isinstance(value, Mapping)]:
        table = values.pop(name)
        if isinstance(options, dict):
            options[name] = {**options.get(name, {}), **table}
    if options:
        values["options"] = options
    return values
