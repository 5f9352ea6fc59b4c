"""Registries that map names to methods, such as augmentations and loss terms, and import them on first use.

A method is a class with an ``Options`` dataclass. Built-in methods are listed as ``"module:Class"`` strings, so that
looking up one method does not import the others. Other packages add methods with ``Registry.register`` or through an
entry point:

.. code-block:: toml

    [project.entry-points."cse.augmentations"]
    my-method = "my_package.my_module:MyMethod"
"""

from __future__ import annotations

import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import Any, Generic, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InputError, did_you_mean, unknown

T = TypeVar("T")


class Registry(Generic[T]):
    """A registry of methods of one kind.

    Args:
        kind: Name of the kind for error messages, such as ``"augmentation"``.
        group: Entry-point group in which other packages declare methods.
        builtin: Maps the names of the built-in methods to ``"module:attribute"``.
        options: Maps the names of built-in methods whose ``Options`` can be imported without the method to these
            ``Options``, as ``"module:attribute"``. An option whose ``Note`` has a flag becomes a flag of ``cse train``.
    """

    def __init__(
        self, kind: str, group: str, builtin: Mapping[str, str], options: Mapping[str, str] | None = None
    ) -> None:
        self.kind, self.group = kind, group
        self._targets, self._options = dict(builtin), dict(options or {})
        self._loaded: dict[str, T] = {}

    def register(self, name: str, method: T) -> T:
        """Registers a method in this process, replacing any method of the same name, and returns it."""
        self._loaded[name] = method
        return method

    @contextmanager
    def preserved(self) -> Iterator[None]:
        """Context manager; methods that are registered within it are removed when it exits."""
        before = dict(self._loaded)
        try:
            yield
        finally:
            self._loaded = before

    def names(self) -> list[str]:
        """Returns the sorted names of all methods: built-in, declared by entry points, and registered."""
        announced = {point.name for point in declared(self.group)}
        return sorted({*self._targets, *self._loaded, *announced})

    def flagged(self) -> dict[str, type[Any]]:
        """Returns the ``Options`` of the methods that may have flags, by method name, without importing the methods."""
        return {name: _imported(target) for name, target in self._options.items()}

    def options(self, name: str) -> type[Any]:
        """Returns the ``Options`` of a method, without importing the method if they can be imported separately."""
        if name in self._options and name not in self._loaded:
            found: type[Any] = _imported(self._options[name])
            return found
        return self.get(name).Options  # type: ignore[attr-defined, no-any-return]

    def __contains__(self, name: str) -> bool:
        return name in self._loaded or name in self._targets or name in self.names()

    def get(self, name: str, flag: str = "") -> T:
        """Returns the method with this name, importing it if necessary.

        Args:
            name: Name of the method.
            flag: Command-line flag at the start of the error message; default: the kind of the registry.

        Raises:
            InputError: If the name is unknown.
        """
        if name in self._loaded:
            return self._loaded[name]
        if name in self._targets:
            self._loaded[name] = _imported(self._targets[name])
            return self._loaded[name]
        for point in declared(self.group):
            if point.name == name:
                self._loaded[name] = point.load()
                return self._loaded[name]
        raise unknown(flag or self.kind, name, self.names())


@dataclass(frozen=True)
class Note:
    """Describes an option in the annotation of its field, like ``pydantic.Field(description=...)``, but with a flag."""

    description: str
    flag: str = ""
    """The option's flag on the command line."""
    metavar: str | None = None
    """Name of the value in the help."""
    default: str | None = None
    """Text shown as the default in the help, if the default is not a plain value."""
    enables: bool = False
    """Whether giving the flag a value also switches the method on, and giving it 0 switches the method off."""


@dataclass(frozen=True)
class OnlyIf:
    """Marks an option that has an effect only if another option of the method has one of some values.

    If such an option is given without effect, ``cse.training.settings.precedence.resolve`` refuses it.
    """

    option: str
    """Name of the other option."""
    values: tuple[Any, ...] = ()
    """Values of the other option; empty: all values that are neither empty nor 0."""
    named: str = ""
    """How an error message names what is needed. Default: the name of the other option, and the values."""


def _imported(target: str) -> Any:
    module, attribute = target.split(":")
    return getattr(import_module(module), attribute)


@cache
def declared(group: str) -> Any:
    """Returns the entry points of a group, cached because reading them opens a file of every installed package."""
    from importlib.metadata import entry_points  # a slow import: about half the time of importing cse.cli

    return entry_points(group=group)


IMPORTED: dict[str, str] = {}


def import_methods(path: str) -> str:
    """Runs a Python file that registers methods, once per process.

    Args:
        path: The file.

    Returns:
        The SHA-256 of the file, in hexadecimal.

    Raises:
        InputError: If the file cannot be read, is not a Python file, raises an error, or has changed since it was
            imported.
    """
    name = Path(path).resolve()
    try:
        source = name.read_bytes()
    except OSError as error:
        raise InputError(f"--import {path}: cannot be read ({(error.strerror or str(error)).lower()})") from None
    found = sha256(source).hexdigest()
    if str(name) in IMPORTED:
        if IMPORTED[str(name)] != found:
            raise InputError(
                f"--import {path}: the file has changed since this process imported it; start a new process"
            )
        return found
    spec = spec_from_file_location(f"cse_methods_{name.stem}", name)
    if spec is None or spec.loader is None:
        raise InputError(f"--import {path}: is not a Python file")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except InputError:
        raise
    except Exception as error:  # whatever the file raises
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise InputError(f"--import {path}: line {line}: {type(error).__name__}: {error}") from None
    IMPORTED[str(name)] = found
    return found


def parse_options(name: str, kind: type[Any], table: Mapping[str, Any]) -> Any:
    """Creates an ``Options`` instance from a table of a configuration file or from ``--set`` values.

    Args:
        name: Name of the method, used in error messages.
        kind: The ``Options`` dataclass.
        table: Option values by name.

    Raises:
        InputError: If an option is unknown, or violates the type or ``pydantic.Field`` constraints of the dataclass.
    """
    from pydantic import ValidationError

    notes = option_notes(kind)
    for key in table:
        if key not in notes:
            raise InputError(f"{name}.{key}: no such option; the options of {name} are {', '.join(notes) or 'none'}")

    def flag(key: object) -> str:
        return notes.get(str(key), {}).get("flag") or f"{name}.{key}"

    _check_numbers(kind, table, flag)
    try:
        return _adapter(kind).validate_python(dict(table))  # type: ignore[arg-type]  # types are hashable
    except ValidationError as error:
        raise InputError(explain_validation(error, flag)) from None


@cache
def _adapter(kind: type[Any]) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _check_numbers(kind: type[Any], table: Mapping[str, Any], flag: Callable[[str], str]) -> None:
    """Raises ``InputError`` for infinity, NaN, a bool given as a number, or a float such as 1e9 given as an integer.

    Pydantic would accept or convert such values.
    """
    hints = get_type_hints(kind)
    for key, value in table.items():
        union = get_origin(hints[key]) in (Union, UnionType)
        allowed = set(get_args(hints[key])) if union else {hints[key]}
        wanted = "an integer" if float not in allowed else "a number"
        if isinstance(value, bool) and bool not in allowed and allowed & {int, float}:
            raise InputError(f"{flag(key)}: must be {wanted}, got {str(value).lower()}")
        if isinstance(value, float) and not isfinite(value):
            raise InputError(f"{flag(key)}: must be a finite number, got {value}")
        if isinstance(value, float) and int in allowed and float not in allowed:
            raise InputError(f"{flag(key)}: must be {wanted}, got {value}")


def option_notes(kind: type[Any]) -> dict[str, dict[str, Any]]:
    """Returns the ``default``, ``description`` and ``flag`` of each option of an ``Options`` dataclass, by option name.

    The annotation of a field may contain a ``Note`` with description and flag, or ``pydantic.Field(description=...)``.
    A missing description or flag is "".
    """
    hints = get_type_hints(kind, include_extras=True)
    notes = {}
    for each in fields(kind):
        found = [part for part in getattr(hints[each.name], "__metadata__", ()) if hasattr(part, "description")]
        notes[each.name] = {
            "default": each.default if each.default is not MISSING else None,
            "description": (found[0].description or "") if found else "",
            "flag": getattr(found[0], "flag", "") if found else "",
        }
    return notes


def option_without_effect(name: str, options: Any, given: Iterable[str]) -> str | None:
    """Returns an error message for the first given option that has no effect (see ``OnlyIf``), else None.

    Args:
        name: Name of the method.
        options: The ``Options`` instance.
        given: Names of the options that the user gave.
    """
    hints = get_type_hints(type(options), include_extras=True)
    for key in given:
        for rule in (part for part in getattr(hints[key], "__metadata__", ()) if isinstance(part, OnlyIf)):
            value = getattr(options, rule.option)
            if value in rule.values if rule.values else value:
                continue
            flag = option_notes(type(options))[key]["flag"] or f"{name}.{key}"
            needed = f"{name}.{rule.option}" + (f"={' or '.join(map(str, rule.values))}" if rule.values else "")
            return f"{flag}: has no effect without {rule.named or needed}; add that, or leave {flag} out"
    return None


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Parses ``METHOD.OPTION=VALUE`` into (method, option, value).

    The value is parsed as TOML; if it is not valid TOML, it is returned as a string. Raises ``InputError`` if the text
    does not have this form.
    """
    key, equals, value = text.partition("=")
    method, dot, option = key.strip().partition(".")
    if not (equals and dot and method and option):
        raise InputError(f"--set {text}: the form is METHOD.OPTION=VALUE, for example una.beta=0.3")
    try:
        return method, option, tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return method, option, value.strip()


def explain_validation(error: Any, name: Any) -> str:
    """Formats the first error of a ``pydantic.ValidationError`` as one line; ``name`` maps a field name to its flag."""
    fault = error.errors(include_url=False)[0]
    place = fault["loc"][0] if fault["loc"] else ""
    where, given, context = name(place), fault["input"], fault.get("ctx", {})
    kind = fault["type"]
    if kind == "extra_forbidden":
        return f"unknown key {place!r}; see cse train --help"
    if kind == "literal_error":
        choices = str(context["expected"]).replace(" or ", ", ").replace("'", "")
        meant = did_you_mean(given, choices.split(", ")) if isinstance(given, str) else ""
        return f"{where}: {given!r} is unknown{meant}; choose one of {choices}"
    limits = {
        "greater_than": "> {gt}",
        "greater_than_equal": ">= {ge}",
        "less_than": "< {lt}",
        "less_than_equal": "<= {le}",
    }
    if kind in limits:
        return f"{where}: must be {limits[kind].format(**context)}, got {given}"
    if kind == "finite_number":
        return f"{where}: must be a finite number, got {given}"
    if kind == "value_error" and not fault["loc"]:
        return str(context["error"])
    if kind == "value_error":
        return f"{where}: {str(context['error']).removeprefix(f'{where}: ')}"
    # The text after the comma says how pydantic tried to convert the value: "a valid integer, unable to parse ...".
    wanted = str(fault["msg"]).partition(",")[0]
    if wanted.startswith("Input should be "):
        return f"{where}: must be {wanted.removeprefix('Input should be ')}, got {given!r}"
    return f"{where}: {wanted[:1].lower()}{wanted[1:]}, got {given!r}"
