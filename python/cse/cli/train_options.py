"""Creates the options of ``cse train`` from the settings of a run and the options of methods.

The settings are in ``cse.training.settings.given``. Methods are losses, augmentations and so on; see ``cse methods``.
The type, choices, help and default of each setting are read from its declaration; only ``columns`` and the short flag
of ``output`` are handled by name. To keep ``--help`` fast, importing this module does not import pydantic, NumPy or
torch.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import click
from click.shell_completion import CompletionItem

from ..training.parts.fields import Named, Shown, marker, shown_of
from ..training.settings.given import GROUPS, MethodFlag, flag, hints, method_flags, switches

HEADINGS = [str(group.__doc__) for group in GROUPS]
"""Headings of the help of ``cse train``, in order."""

SHORT = {"output": "-o"}


class Text(click.ParamType[str]):
    """Parameter type for text with known completions; ``TrainConfig`` validates the value and reports errors."""

    name = "text"

    def __init__(self, choices: Any = None) -> None:
        self.choices = choices or list

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Returns the choices that begin with what was typed."""
        return [CompletionItem(each) for each in self.choices() if each.startswith(incomplete)]


def setting_options() -> list[click.Option]:
    """Returns one option per setting, per method with a switch (like ``--una``), and per method option with a flag.

    Hidden settings have no option. The attribute ``heading`` of an option is the help section that lists it.
    """
    texts = _docstrings()
    found = []
    for group in GROUPS:
        for name in group.__annotations__:
            shown = shown_of(hints()[name])
            if not shown.hidden:
                found.append(_setting(name, hints()[name], getattr(group, name), shown, texts.get(name, "")))
                found[-1].heading = group.__doc__  # type: ignore[attr-defined]
        of_methods = [each for each in method_flags() if each.group is group]
        for method, text in switches().items() if any(each.method in switches() for each in of_methods) else ():
            found.append(
                click.Option([f"--{method}/--no-{method}"], default=None, help=_help(_first_sentence(text), "no"))
            )
            found[-1].heading = group.__doc__  # type: ignore[attr-defined]
        for each in of_methods:
            found.append(_method_option(each))
            found[-1].heading = group.__doc__  # type: ignore[attr-defined]
    return found


def given_values(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Splits the values given on the command line into settings and options of methods.

    Args:
        values: Values by parameter name; None or an empty tuple for options that were not given.

    Returns:
        Keyword arguments of ``TrainConfig``, and options by method.
    """
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    if "columns" in given:
        given["columns"] = tuple(name.strip() for name in given["columns"].split(","))
    tables: dict[str, dict[str, Any]] = {}
    for each in method_flags():
        if each.keyword not in given:
            continue
        value = given.pop(each.keyword)
        if each.note.enables:
            given[each.named_by] = (*given.get(each.named_by, ()), *([each.method] if value else []))
            if not value:
                continue
        tables.setdefault(each.method, {})[each.option] = value
    return given, tables


def _setting(name: str, hint: Any, default: Any, shown: Shown, text: str) -> click.Option:
    kind, choices = _kind(hint)
    named = marker(hint, Named)
    # The value of an option that is not given is None; TrainConfig replaces it with the default.
    options: dict[str, Any] = {"default": None, "help": _help(text, _default_text(name, default, shown))}
    declared = flag(name)
    if kind is bool:
        declared = f"{declared}/--no-{declared.removeprefix('--')}"
    elif kind is tuple and name != "columns":
        options |= {"multiple": True, "default": ()}
    if kind in (int, float):
        options["type"] = kind
    elif kind is not bool:
        options["type"] = Text(named.names if named else lambda: choices)
    options["metavar"] = shown.metavar or ("|".join(choices) if choices else None)
    return click.Option([declared, name, *([SHORT[name]] if name in SHORT else [])], **options)


def _method_option(each: MethodFlag) -> click.Option:
    kind, choices = _kind(each.hint)
    text = each.note.description + "."
    text = f"{each.method.upper()}: {text}" if each.method in switches() else text[0].upper() + text[1:]
    default = each.note.default or _by_family((each.method, each.option), each.default)
    if kind is bool:
        declared = f"{each.note.flag}/--no-{each.note.flag.removeprefix('--')}"
        return click.Option([declared, each.keyword], default=None, help=_help(text, default))
    return click.Option(
        [each.note.flag, each.keyword],
        default=None,
        type=kind if kind in (int, float) else Text(lambda: choices),
        metavar=each.note.metavar or ("|".join(choices) if choices else None),
        help=_help(text, default),
    )


def _kind(hint: Any) -> tuple[type[Any], list[str]]:
    """Returns the type in an annotation, ignoring None (``str`` for a union of types), and the choices of a Literal."""
    while hasattr(hint, "__metadata__"):
        hint = hint.__origin__
    if get_origin(hint) in (Union, UnionType):
        inner = [each for each in get_args(hint) if each is not type(None)]
        return _kind(inner[0]) if len(inner) == 1 else (str, [])
    if get_origin(hint) is Literal:
        return str, [str(each) for each in get_args(hint)]
    return get_origin(hint) or hint, []


def _help(text: str, default: str) -> str:
    return f"{text}  [default: {default}]" if default else text


def _default_text(name: str, default: Any, shown: Shown) -> str:
    if shown.default:
        return shown.default
    return _by_family((name,), default)


def _by_family(path: tuple[str, ...], default: Any) -> str:
    """Returns the default, then the defaults of model families that differ from it: ``5e-05; 3e-05 for bert-base``."""
    values: dict[str, list[str]] = {}
    known = _families()
    common = _text(_at(known["all"], path, default))
    for family, table in known.items():
        if family == "all":
            continue
        found = _text(_at(table, path, common))
        values.setdefault(found, []).append(family)
        for loss, changes in table.items():
            value = _text(_at(changes, path, None))
            if value not in ("", found):
                about = f"{family} without --pairs" if loss == "unlabelled" else f"{loss} on {family}"
                values.setdefault(value, []).append(about)
    if not common:
        common = max(values, key=lambda each: len(values[each]), default="")
    others = [f"{value} for {', '.join(names)}" for value, names in values.items() if value not in (common, "")]
    return "; ".join([*([common] if common else []), *others])


def _at(table: Any, path: tuple[str, ...], default: Any) -> Any:
    for key in path:
        if not isinstance(table, dict) or key not in table:
            return default
        table = table[key]
    return table


def _text(value: Any) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


@cache
def _families() -> dict[str, Any]:
    return tomllib.loads((files("cse") / "presets" / "defaults.toml").read_text(encoding="utf8"))


def _docstrings() -> dict[str, str]:
    """Returns the first paragraph of each setting's docstring by name; empty if there are no source files to read."""
    found = {}
    for group in GROUPS:
        path = Path(str(sys.modules[group.__module__].__file__))
        tree = ast.parse(path.read_text(encoding="utf8")) if path.suffix == ".py" and path.exists() else ast.parse("")
        body = [
            each
            for node in tree.body
            if isinstance(node, ast.ClassDef) and node.name == group.__name__
            for each in node.body
        ]
        for field, text in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                match text:
                    case ast.Expr(value=ast.Constant(value=str(words))):
                        found[field.target.id] = " ".join(words.split("\n\n")[0].split())
    return found


def _first_sentence(text: str) -> str:
    return text.split(". ")[0].rstrip(".") + "."
