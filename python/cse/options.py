"""Options: one declaration of each, from which its flag, help, keyword, TOML key and checks follow.

An option is a field of a dataclass (a group of options) or a parameter of a command. Its annotation gives the type, the
range (``annotated_types``) and an ``Opt``:

.. code-block:: python

    beta: Annotated[float, Ge(0), Le(1), Opt("Mean probability that a word is replaced.")] = 0.5

``cse.cli.command`` makes options of commands from such declarations, ``cse.training.settings`` the settings of a run.
This module does not import click, and importing it is fast.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from math import isfinite
from numbers import Integral, Real
from pkgutil import resolve_name
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt, MinLen

from .errors import LARGEST, InputError, did_you_mean, shown, unknown


@dataclass(frozen=True)
class If:
    """A condition on another option: that it is given, is switched on, or has one of some values."""

    option: str  # name of the other option
    values: tuple[Any, ...] = ()  # values of the other option; empty: all values that are neither empty nor 0
    named: str = ""
    """How a message names the condition. Default: the flag of the other option, and the values."""
    why: str = ""
    """Text that a message adds to the name; with it, a message says "needs" instead of "has no effect without"."""

    def holds(self, value: Any) -> bool:
        """Returns whether the condition holds if the other option has this value."""
        if self.values:
            return any(item in self.values for item in (value if isinstance(value, tuple) else (value,)))
        return value not in (None, (), "", False, 0)


@dataclass(frozen=True)
class Opt:
    """How an option is shown, and with which other options it can be combined."""

    help: str = ""
    metavar: str | None = None
    """Name of the value in the help. Default: the choices of a ``Literal``, else the type."""
    default: str = ""  # text shown as the default in the help, if the default is not a plain value
    flag: str = ""
    """Flag on the command line. Default: the name, for settings and options of commands."""
    short: str = ""  # a second, short flag, such as -o
    names: str = ""  # where the accepted names are listed: module:attribute of a mapping, a registry or a function
    needs: str | If | tuple[str | If, ...] = ()
    """Conditions without which the option has no effect; a name stands for ``If(name)``."""
    excludes: str | If | tuple[str | If, ...] = ()  # conditions that the option contradicts
    separator: str = ""  # separator of several values in one argument; otherwise, the flag of a tuple is repeated
    paths: bool = False  # whether the values are paths; one path may be given without a list
    blank: bool = False  # whether an empty text is a value; on the command line, other options and arguments refuse it
    hidden: bool = False  # whether the option has no flag
    enables: bool = False
    """Option of a method: on the command line, a value also switches the method on, and 0 switches it off."""
    may_change: bool = False  # setting of a run: whether the value may change when the run is resumed
    same_results: bool = False  # setting of a run: whether the value has no effect on what the run computes
    private: bool = False  # setting of a run: whether it names files of the user, so that model cards leave it out


@dataclass(frozen=True)
class NoOptions:
    """Options of a method that has none."""


class WithOptions:
    """Base class of methods, which are constructed from an instance of ``Options``."""

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""
    """One-line description, shown by ``cse methods``."""

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns default values of run settings, by name, for runs that use the method with these options."""
        return {}


@dataclass(frozen=True)
class Option:
    """An option as it was declared."""

    name: str
    hint: Any  # the type, without its annotations
    default: Any  # MISSING if a value is required
    opt: Opt
    marks: tuple[Any, ...] = ()  # the ranges and other marks in the annotation

    @property
    def flag(self) -> str:
        """The flag, whether or not the option has one on the command line."""
        return self.opt.flag.partition("/")[0] or "--" + self.name.replace("_", "-")

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The alternatives of the type, without None."""
        union = get_origin(self.hint) in (Union, UnionType)
        return tuple(kind for kind in get_args(self.hint) if kind is not NoneType) if union else (self.hint,)

    @property
    def kind(self) -> Any:
        """The type of one value on the command line: bool, int, float or str."""
        kind = self.kinds[0] if len(self.kinds) == 1 else str
        if get_origin(kind) is tuple:
            kind = get_args(kind)[0]
        return kind if kind in (bool, int, float) else str

    @property
    def several(self) -> bool:
        return len(self.kinds) == 1 and get_origin(self.kinds[0]) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a ``Literal``; empty for other types."""
        return get_args(self.kinds[0]) if get_origin(self.kinds[0]) is Literal else ()

    def names(self) -> Collection[str]:
        """Returns the accepted names; without ``Opt.names``, the choices."""
        if not self.opt.names:
            return self.choices
        names = resolve_name(self.opt.names)
        names = names() if callable(names) else names
        accepted: Collection[str] = names.names() if hasattr(names, "names") else names
        return accepted  # not a list, since POOLERS accepts more names than it lists

    def limits(self) -> dict[str, Any]:
        """Returns the limits of a number, by the names of ``annotated_types``: ge, gt, le, lt."""
        ranges = [asdict(mark) for mark in self.marks if isinstance(mark, (Ge, Gt, Le, Lt))]
        return {name: value for limit in ranges for name, value in limit.items()}

    def check(self, value: Any, flag: str = "") -> Any:
        """Returns a value, with lists as tuples; raises ``InputError`` that begins with ``flag`` if it is invalid."""
        flag = flag or self.flag
        if value is None and (self.default is None or NoneType in get_args(self.hint)):
            return None
        results = [_converted(kind, value) for kind in self.kinds]
        fitting = [converted for converted, fault in results if not fault]
        if not fitting and self.choices and isinstance(value, str):
            raise unknown(flag, value, self.choices)
        if not fitting:
            faults = dict.fromkeys(fault for _, fault in results)
            text = f"{value:g}" if isinstance(value, float) and not isfinite(value) else shown(value)
            raise InputError(f"{flag} must be {' or '.join(faults)}, got {text}")
        value = fitting[0]
        least = next((mark.min_length for mark in self.marks if isinstance(mark, MinLen)), 0)
        if len(value) < least if isinstance(value, (str, tuple)) else False:
            unit = "character" if isinstance(value, str) else "element"
            raise InputError(f"{flag} must have at least {least} {unit}{'s' if least > 1 else ''}")
        several = value if isinstance(value, tuple) else (value,)
        for number in several:
            default = {"ge": -LARGEST, "le": LARGEST} if isinstance(number, int) else {}
            for name, limit in {**default, **self.limits()}.items() if isinstance(number, (int, float)) else ():
                if not getattr(operator, name)(number, limit):
                    raise InputError(f"{flag} must be {SIGNS[name]} {limit}, got {shown(number)}")
        for place, item in enumerate(several) if self.opt.names else ():
            if item not in (known := self.names()):
                raise unknown(flag, item, known)
            if item in several[:place]:
                raise InputError(f"{flag} {item} was given twice; give it once")
        return value


SIGNS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
NAMED = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def _converted(kind: Any, value: Any) -> tuple[Any, str]:
    """Returns a value as the type ``kind`` and "", or the value and what it must be."""
    origin = get_origin(kind)
    if origin is Literal:
        return value, "" if value in get_args(kind) else f"one of {', '.join(map(str, get_args(kind)))}"
    if origin is tuple:
        inner = get_args(kind)[0]
        if isinstance(value, (list, tuple)):
            converted = [_converted(inner, item) for item in value]
            if not any(fault for _, fault in converted):
                return tuple(item for item, _ in converted), ""
        of = {str: "names or texts", int: "integers", float: "numbers"}.get(inner, "values")
        return value, f"a list of {of}"
    if kind is float:
        if isinstance(value, Real) and not isinstance(value, bool):  # also numbers of NumPy
            try:
                number = float(value)
            except OverflowError:
                return value, "a finite number"
            return number, "" if isfinite(number) else "a finite number"
        return value, "a number"
    if kind in NAMED:
        value = int(value) if kind is int and isinstance(value, Integral) and not isinstance(value, bool) else value
        right = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
        if right and kind is str and "\0" in value:
            return value, "text without the character NUL"
        return value, "" if right else NAMED[kind]
    return value, "" if not isinstance(origin or kind, type) or isinstance(value, origin or kind) else f"a {kind}"


def options_of(group: type[Any]) -> tuple[Option, ...]:
    """Returns the options that a dataclass declares, in order."""
    return _options_of(group)  # type: ignore[arg-type]  # mypy: a dataclass may not be hashable; its class is


@cache
def _options_of(group: type[Any]) -> tuple[Option, ...]:
    hints = get_type_hints(group, include_extras=True)
    return tuple(declared(field.name, hints[field.name], field.default) for field in fields(group))


def declared(name: str, hint: Any, default: Any) -> Option:
    """Returns the option with this annotation; each attribute of its ``Opt`` is the outermost that is set."""
    marks: list[Any] = []
    bare = _bare(hint, marks)
    shown: dict[str, Any] = {}
    for opt in (mark for mark in marks if isinstance(mark, Opt)):
        shown = {**{key: value for key, value in vars(opt).items() if value not in ("", None, (), False)}, **shown}
    return Option(name, bare, default, Opt(**shown), tuple(mark for mark in marks if not isinstance(mark, Opt)))


def _bare(hint: Any, marks: list[Any]) -> Any:
    """Returns a type without annotations; appends these to ``marks``, the outermost first."""
    if get_origin(hint) is Annotated:
        marks += reversed(hint.__metadata__)
        return _bare(hint.__origin__, marks)
    if get_origin(hint) is tuple and get_args(hint)[1:] == (Ellipsis,):
        return tuple[_bare(get_args(hint)[0], marks), ...]  # type: ignore[misc]
    if get_origin(hint) in (Union, UnionType):
        kinds = [_bare(kind, marks) for kind in get_args(hint)]
        return Union[tuple(kinds)]  # noqa: UP007 - of a list of types
    return hint


def parse_options(name: str, group: type[Any], table: Mapping[str, Any]) -> Any:
    """Returns the ``Options`` of the method ``name`` with the values in ``table``; raises ``InputError`` for others."""
    known = {option.name: option for option in options_of(group)}
    for key in table:
        if key not in known:
            raise InputError(
                f"{name}.{key}: no such option{did_you_mean(key, known)}; the options of {name} are "
                f"{', '.join(known) or 'none'}"
            )
    return group(
        **{key: known[key].check(value, known[key].opt.flag or f"{name}.{key}") for key, value in table.items()}
    )


def conditions(given: str | If | tuple[str | If, ...]) -> list[If]:
    """Returns the conditions of ``Opt.needs`` or ``Opt.excludes``."""
    return [If(item) if isinstance(item, str) else item for item in (given if isinstance(given, tuple) else (given,))]


def combination_fault(
    options: Iterable[Option], names: Iterable[str], value_of: Callable[[str], Any], flag_of: Callable[[str], str]
) -> str | None:
    """Returns the error message for the first given option that has no effect or contradicts another one, else None."""
    named = set(names)
    for option in options:
        value = value_of(option.name)
        if option.name not in named or value is None or value == () or (value is option.default is False):
            continue
        this = flag_of(option.name)
        for kind, given in (("needs", option.opt.needs), ("excludes", option.opt.excludes)):
            for condition in conditions(given):
                if condition.holds(value_of(condition.option)) == (kind == "needs"):
                    continue
                other = flag_of(condition.option)
                if condition.values:
                    other += f"{' ' if other.startswith('--') else '='}{' or '.join(map(str, condition.values))}"
                other = condition.named or other
                why = f", {condition.why}" if condition.why else ""
                if kind == "needs":
                    verb = "needs" if why else "has no effect without"
                    return f"{this} {verb} {other}{why}; add that, or omit {this}"
                return f"{this} cannot be combined with {other}{why}; omit one of them"
    return None


def phrase(help: str) -> str:
    """Returns the help of an option as a phrase: without the full stop, and with a small letter at the beginning."""
    return (help[0].lower() if help[1:2].islower() else help[:1]) + help[1:].removesuffix(".")


# Options that commands and settings share.
Threads = Annotated[int, Ge(0), Le(1024), Opt("CPU threads; 0: all cores.", "N", may_change=True, same_results=True)]
Seed = Annotated[int, Ge(0), Le(2**64 - 1), Opt("Seed of all random choices.", "N")]
Device = Annotated[
    str, Opt("auto (a GPU if there is one), cpu, cuda, cuda:1, mps, ...", may_change=True, same_results=True)
]
Precision = Annotated[
    Literal["fp32", "bf16", "auto"],
    Opt("Precision of the transformer; auto: bf16 on CUDA and on CPUs that are faster in bf16, else fp32."),
]
Pooler = Annotated[str, Opt(metavar="NAME", names="cse.encoder.pooling:POOLERS")]
Prompt = Annotated[
    str | None,
    Opt(
        "Text to put before each sentence, or around it if it has {text}, or a name of the model's prompts.",
        "NAME|TEXT",
        "the model's default prompt",
        blank=True,
    ),
]
Column = Annotated[
    str | None, Opt("Column with the sentences, if the files are tables (.csv, .tsv, .jsonl, .parquet).", "NAME")
]
EncodingErrors = Annotated[Literal["strict", "replace"], Opt("How to handle invalid UTF-8.")]
MaxLineBytes = Annotated[int, Ge(1), Le(2**40), Opt("Maximum length of a row in bytes.", "N")]
Cache = Annotated[
    str | None,
    Opt("Cache folder for large inputs.", "DIR", "the user's cache", may_change=True, same_results=True, private=True),
]
Imports = Annotated[tuple[str, ...], Opt("Python file that registers methods.", "FILE.py", flag="--import", paths=True)]
