"""Tables from the names of methods to their classes, loaded on first use.

A method (an augmentation, a loss term, an evaluation) is one class with an ``Options`` dataclass. The package lists its
own methods as ``"module:Class"``, so that looking up one imports no other. Other packages add theirs with
``Registry.register`` or through an entry point:

.. code-block:: toml

    [project.entry-points."cse.augmentations"]
    my-method = "my_package.my_module:MyMethod"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, get_type_hints

from .errors import InputError

__all__ = ["Registry", "option_notes", "parse_options", "parse_setting"]

T = TypeVar("T")


class Registry(Generic[T]):
    """Methods of one kind, by name.

    Args:
        kind: What the methods are, as error messages say it (``"augmentation"``).
        group: The entry-point group in which other packages announce theirs.
        builtin: Name to ``"module:attribute"`` for the methods of this package.
    """

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        self.kind, self.group = kind, group
        self._targets = dict(builtin)
        self._loaded: dict[str, T] = {}

    def register(self, name: str, method: T) -> T:
        """Adds a method for this process, or replaces one of the same name; returns it."""
        self._loaded[name] = method
        return method

    def names(self) -> list[str]:
        """All known names: built in, announced by entry points, and registered, sorted."""
        announced = {point.name for point in entry_points(group=self.group)}
        return sorted({*self._targets, *self._loaded, *announced})

    def __contains__(self, name: str) -> bool:
        return name in self._loaded or name in self._targets or name in self.names()

    def get(self, name: str, flag: str = "") -> T:
        """The method of this name, imported if needed.

        Raises ``InputError`` for an unknown name; ``flag`` is the command-line flag that the message starts with.
        """
        if name in self._loaded:
            return self._loaded[name]
        if name in self._targets:
            module, attribute = self._targets[name].split(":")
            self._loaded[name] = getattr(import_module(module), attribute)
            return self._loaded[name]
        for point in entry_points(group=self.group, name=name):
            self._loaded[name] = point.load()
            return self._loaded[name]
        raise InputError(f"{flag or self.kind}: {name!r} is unknown; choose one of {', '.join(self.names())}")


def parse_options(name: str, kind: type[Any], table: Mapping[str, Any]) -> Any:
    """An ``Options`` dataclass from a table of a configuration file or from ``--set`` values.

    Types and ``pydantic.Field`` constraints of the dataclass are checked; ``InputError`` names the option.
    """
    from pydantic import TypeAdapter, ValidationError

    notes = option_notes(kind)
    for key in table:
        if key not in notes:
            raise InputError(f"{name}.{key}: no such option; {name} has {', '.join(notes) or 'no options'}")
    try:
        return TypeAdapter(kind).validate_python(dict(table))
    except ValidationError as error:
        raise InputError(explain_validation(error, lambda key: notes[str(key)]["flag"] or f"{name}.{key}")) from None


def option_notes(kind: type[Any]) -> dict[str, dict[str, Any]]:
    """Default, description and command-line flag ("" if it has none of its own) of each option of a dataclass.

    They are those of a ``pydantic.Field(description=..., json_schema_extra={"flag": ...})`` in its annotation.
    """
    hints = get_type_hints(kind, include_extras=True)
    notes = {}
    for each in fields(kind):
        found = [part for part in getattr(hints[each.name], "__metadata__", ()) if hasattr(part, "description")]
        extra = (found[0].json_schema_extra or {}) if found else {}
        notes[each.name] = {
            "default": each.default if each.default is not MISSING else None,
            "description": (found[0].description or "") if found else "",
            "flag": extra.get("flag", ""),
        }
    return notes


def parse_setting(text: str) -> tuple[str, str, Any]:
    """``METHOD.OPTION=VALUE`` as (method, option, value); the value is read as TOML, else taken as a string."""
    key, equals, value = text.partition("=")
    method, dot, option = key.strip().partition(".")
    if not (equals and dot and method and option):
        raise InputError(f"--set {text}: the form is METHOD.OPTION=VALUE, for example una.beta=0.3")
    try:
        return method, option, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return method, option, value.strip()


def explain_validation(error: Any, name: Any) -> str:
    """One sentence for the first fault of a ``pydantic.ValidationError``; ``name`` maps a field to its flag."""
    fault = error.errors(include_url=False)[0]
    place = fault["loc"][0] if fault["loc"] else ""
    where, given, context = name(place), fault["input"], fault.get("ctx", {})
    kind = fault["type"]
    if kind == "extra_forbidden":
        return f"unknown key {place!r}; see cse train --help"
    if kind == "literal_error":
        choices = str(context["expected"]).replace(" or ", ", ").replace("'", "")
        return f"{where}: {given!r} is unknown; choose one of {choices}"
    limits = {
        "greater_than": "above {gt}",
        "greater_than_equal": "at least {ge}",
        "less_than": "below {lt}",
        "less_than_equal": "at most {le}",
    }
    if kind in limits:
        return f"{where}: {given} was given, and it must be {limits[kind].format(**context)}"
    if kind == "finite_number":
        return f"{where}: {given} was given, and it must be a finite number"
    if kind == "value_error":
        return f"{where}: {str(context['error']).removeprefix(f'{where}: ')}"
    wanted = str(fault["msg"]).removeprefix("Input should be ").removeprefix("a valid ")
    return f"{where}: {given!r} was given, and it must be a valid {wanted}"
