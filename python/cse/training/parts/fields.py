"""Markers and types of settings.

Every setting of a run is declared once, in the group of settings of the part that it belongs to (``Data`` in
``data.py``, and so on). Its type, default, range and docstring are read from the declaration:
``cse.training.settings.config`` validates values against it, ``cse.cli.train_options`` makes an option of ``cse train``
from it, and ``cse.training.settings.precedence`` adds defaults that depend on preset, loss and model. The first
paragraph of a setting's docstring is the help of the option; the following paragraphs are shown only in the
documentation. The docstring of a group is its heading in the help.

The files of this folder import neither pydantic, NumPy nor torch at the top level, so that the command line starts
quickly; functions import what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal, TypeVar, get_args

from annotated_types import Ge, Gt, Le, Lt

from ...errors import unknown

T = TypeVar("T")


class Group:
    """Base class of the groups of settings; a group holds the settings of one part of a run."""

    def check(self) -> None:
        """Raises ``InputError`` for settings of the group that exclude or need each other."""


@dataclass(frozen=True)
class Shown:
    """How a setting is shown on the command line."""

    metavar: str | None = None
    """Name of the value in the help."""
    default: str | None = None
    """Text shown as the default in the help, if the default is not a plain value."""
    flag: str | None = None
    """Flag, if it is not derived from the name of the setting."""
    hidden: bool = False
    """Whether the setting has no command-line option."""


@dataclass(frozen=True)
class Named:
    """Marks a setting whose values must be names in a table: a mapping, a registry, or a function that returns names.

    ``table`` has the form ``module:attribute``.
    """

    table: str

    def names(self) -> list[str]:
        """Returns the names in the table."""
        found = self._found()
        return list(found.names() if hasattr(found, "names") else found)

    def _found(self) -> Any:
        module, attribute = self.table.split(":")
        found = getattr(import_module(module), attribute)
        return found() if callable(found) else found

    def check(self, value: str, name: str) -> None:
        """Raises ``InputError`` if the value is not in the table; ``name`` is the flag in the message."""
        if value not in self._found():  # a table may contain names that it does not list
            raise unknown(name, value, self.names())


@dataclass(frozen=True)
class Paths:
    """Marks a setting that is a list of paths; a single path may be given without a list."""


@dataclass(frozen=True)
class MayChange:
    """Marks a setting that may change when a run is resumed, because it does not affect the steps already done."""

    computed: bool = True
    """Whether the setting affects what a new run computes, apart from rounding."""


ELSEWHERE = MayChange(computed=False)

AUGMENTATION = Named("cse.augment:AUGMENTATIONS")
HOOK = Named("cse.features:HOOKS")

NotNegative = Annotated[int, Ge(0), Shown("N")]
Positive = Annotated[int, Ge(1), Shown("N")]
Objective = Literal["infonce", "nt-xent"]
Scheduler = Literal["linear", "cosine", "constant"]
Precision = Literal["fp32", "bf16", "auto"]
Pooler = Annotated[str, Named("cse.models.pooling:POOLERS")]
MaxLength = Annotated[int, Ge(3), Shown("N")]
BatchSize = Annotated[int, Ge(2), Shown("N")]
AboveZero = Annotated[float, Gt(0)]
AtLeastZero = Annotated[float, Ge(0)]
Temperature = Annotated[float, Ge(1e-4)]  # below 1e-4, logits and their gradients overflow
Weight = Annotated[float, Ge(0), Le(1), Shown("WEIGHT")]
Rate = Annotated[float, Ge(0), Lt(1), Shown("P", default="the model's")]


def shown_of(hint: Any) -> Shown:
    """Returns how a setting is shown; each field is taken from the outermost marker that sets it."""
    found: dict[str, Any] = {}
    for each in _markers(hint):
        if isinstance(each, Shown):
            found = {**{name: value for name, value in vars(each).items() if value}, **found}
    return Shown(**found)


def marker(hint: Any, kind: type[T]) -> T | None:
    """Returns the outermost marker of class ``kind`` in an annotated type; None if there is none."""
    return next((each for each in _markers(hint) if isinstance(each, kind)), None)


def _markers(hint: Any) -> Iterator[Any]:
    yield from getattr(hint, "__metadata__", ())
    inner = (hint.__origin__,) if hasattr(hint, "__metadata__") else get_args(hint)
    for each in inner:
        if not isinstance(each, str):
            yield from _markers(each)
