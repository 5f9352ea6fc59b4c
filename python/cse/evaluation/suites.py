"""Creation of evaluations by name, for ``cse eval`` and ``cse compare``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath
from typing import Any

from ..errors import InputError
from ..registry import option_notes, parse_options, parse_setting
from . import EVALUATIONS
from .base import Evaluation


def option_tables(settings: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Returns options by evaluation name.

    Args:
        settings: Settings of the form ``NAME.OPTION=VALUE``.

    Raises:
        InputError: If a setting has another form.
    """
    tables: dict[str, dict[str, Any]] = {}
    for text in settings:
        name, option, value = parse_setting(text)
        tables.setdefault(name, {})[option] = value
    return tables


def open_suites(
    names: str | Sequence[str],
    data: str | PathLike[str] | None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    allow_partial: bool = False,
) -> dict[str, Evaluation]:
    """Creates evaluations by name; each reads and checks its data.

    Args:
        names: Name of an evaluation, or several names.
        data: Value of ``--data``.
        options: Options by evaluation name, as returned by ``option_tables``.
        allow_partial: True: set the option ``allow_partial`` of the evaluations that have it, unless ``options`` does.

    Raises:
        InputError: For an unknown name or option, or invalid data.
    """
    names = [names] if isinstance(names, str) else list(names)
    path = None if data is None else fspath(data)
    tables = dict(options or {})
    if unused := sorted(set(tables) - set(names)):
        raise InputError(f"--set {unused[0]}.OPTION: {unused[0]} is not among the suites; add --suite {unused[0]}")
    evaluations = {}
    for name in dict.fromkeys(names):
        kind = EVALUATIONS.get(name, "--suite")
        table = tables.get(name, {})
        if allow_partial and "allow_partial" in option_notes(kind.Options):
            table = {"allow_partial": True, **table}
        evaluations[name] = kind(parse_options(name, kind.Options, table), path)
    return evaluations
