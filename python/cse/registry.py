"""Registries that map names to methods, such as augmentations and loss terms, and import them on first use.

A method is a class with an ``Options`` dataclass. Other packages add methods with ``Registry.register`` or through an
entry point:

.. code-block:: toml

    [project.entry-points."cse.augmentations"]
    my-method = "my_package.my_module:MyMethod"
"""

from __future__ import annotations

import sys
import tomllib
import traceback
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from .errors import InputError, shortened, unknown

T = TypeVar("T")

REMOVED = {"mteb": "mteb.evaluate takes a cse.Encoder; see docs/with.md"}
"""Methods of earlier versions, and what is used instead."""


class Registry(Generic[T]):
    """A registry of methods of one kind.

    ``kind`` names it in error messages, and ``group`` is the entry-point group in which other packages declare methods.
    ``builtin`` maps the names of the built-in methods to ``"module:attribute"``, and ``options`` the ones of which the
    ``Options`` can be imported without the method; options whose ``Opt`` has a flag become flags of ``cse train``.
    """

    def __init__(
        self, kind: str, group: str, builtin: Mapping[str, str] | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self.kind, self.group = kind, group
        self._targets, self._options = dict(builtin or {}), dict(options or {})
        self._loaded: dict[str, T] = {}

    def register(self, name: str, method: T) -> T:
        """Registers a method in this process, replacing any method of the same name, and returns it."""
        self._loaded[name] = method
        return method

    @property
    def registered(self) -> Collection[str]:
        """The names of the methods that are loaded, among them all that were registered in this process."""
        return self._loaded.keys()

    def names(self) -> list[str]:
        """Returns the sorted names of all methods: built-in, declared by entry points, and registered."""
        announced = {point.name for point in declared(self.group)}
        return sorted({*self._targets, *self._loaded, *announced})

    def installed(self) -> list[str]:
        """Returns ``names`` without the methods of packages that are declared, but cannot be found; imports none."""
        absent = set()
        for point in declared(self.group):
            with suppress(ModuleNotFoundError):
                if find_spec(point.module.partition(".")[0]):
                    continue
            absent.add(point.name)
        return [name for name in self.names() if name not in absent or name in self._targets or name in self._loaded]

    def flagged(self) -> dict[str, type[Any]]:
        """Returns the ``Options`` of the methods that may have flags, by method name, without importing the methods."""
        return {name: resolve_name(target) for name, target in self._options.items()}

    def options(self, name: str) -> type[Any]:
        """Returns the ``Options`` of a method, without importing the method if they can be imported separately."""
        if name in self._options and name not in self._loaded:
            options: type[Any] = resolve_name(self._options[name])
            return options
        return self.get(name).Options  # type: ignore[attr-defined, no-any-return]

    def __contains__(self, name: str) -> bool:
        return name in self._loaded or name in self._targets or name in self.names()

    def get(self, name: str, flag: str = "") -> T:
        if name in self._loaded:
            return self._loaded[name]
        if name in self._targets:
            self._loaded[name] = resolve_name(self._targets[name])
            return self._loaded[name]
        for point in declared(self.group):
            if point.name == name:
                self._loaded[name] = load(point, self.kind)
                return self._loaded[name]
        if name in REMOVED:
            raise InputError(f"{flag or self.kind} {name} was removed: {REMOVED[name]}")
        raise unknown(flag or self.kind, name, self.names())


@cache
def declared(group: str) -> Any:
    """Returns the entry points of a group, cached because reading them opens a file of every installed package."""
    from importlib.metadata import entry_points  # a slow import: about half the time of importing cse.cli

    return entry_points(group=group)


def load(point: Any, kind: str) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"{kind} {point.name}: {point.value} cannot be imported ({error}); install its package again"
        ) from None


IMPORTED: dict[str, str] = {}


def import_methods(path: str) -> str:
    """Runs a Python file that registers methods, once per process; returns the SHA-256 of the file."""
    name = Path(path).resolve()
    digest = sha256(Path(path).read_bytes()).hexdigest()
    if str(name) in IMPORTED:
        if IMPORTED[str(name)] != digest:
            raise InputError(
                f"--import {path}: the file has changed since this process imported it; start a new process"
            )
        return digest
    loader = SourceFileLoader(f"cse_methods_{name.stem}", str(name))
    module = module_from_spec(ModuleSpec(loader.name, loader, origin=str(name)))
    module.__file__ = str(name)
    sys.modules[loader.name] = module
    try:
        loader.exec_module(module)
    except InputError:
        raise
    except SyntaxError as error:
        raise InputError(f"--import {path}: line {error.lineno}: SyntaxError: {error.msg}") from None
    except Exception as error:  # whatever the file raises
        line = traceback.extract_tb(error.__traceback__)[-1].lineno
        raise InputError(f"--import {path}: line {line}: {type(error).__name__}: {error}") from None
    IMPORTED[str(name)] = digest
    return digest


def check_imports(paths: Sequence[str]) -> None:
    """Raises ``InputError`` if a configuration names a Python file that has not been imported in this process."""
    for path in paths:
        if str(Path(path).resolve()) not in IMPORTED:
            raise InputError(
                f"needs the methods of the Python file {path}, which a configuration does not run; if you trust it, "
                f"repeat the command with --import {path}, or in Python call cse.registry.import_methods first"
            )


def parse_setting(text: str) -> tuple[str, str, Any]:
    """Parses ``METHOD.OPTION=VALUE`` into (method, option, value)."""
    key, equals, value = text.partition("=")
    method, dot, option = key.strip().partition(".")
    if not (equals and dot and method and option):
        raise InputError(f"--set {shortened(text, 60)}: the form is METHOD.OPTION=VALUE, for example una.beta=0.3")
    try:
        return method, option, tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):  # also an integer of 5,000 digits, and thousands of brackets
        return method, option, value.strip()
