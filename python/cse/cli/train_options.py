"""The options of ``cse train``: one for each setting of a run, and for each option of a method that has a flag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from ..augment import AUGMENTATIONS
from ..options import Option, options_of, phrase
from ..training.settings.declared import GROUPS
from ..training.settings.presets import conditions, families
from ..training.settings.values import flat, method_flags
from .command import click_option
from .printing import plain

NO_TERMS = "none"
"""Value of --loss-term that removes the terms of the recipe or preset."""
HEADINGS = [str(group.__doc__) for group in GROUPS]
"""Headings of the help of ``cse train``, in order."""


def setting_options() -> list[click.Option]:
    """Returns one option per setting, per method with a switch (like ``--una``), and per method option with a flag."""
    switched = {name: str(kind.__doc__).partition("\n")[0] for name, kind in AUGMENTATIONS.flagged().items()}
    made: list[click.Option] = []
    for group in GROUPS:
        heading = str(group.__doc__)
        for option in options_of(group):
            if not option.opt.hidden:
                made.append(_option(option, option.name, option.opt.help, heading, (option.name,)))
        of_methods = {name: item for name, item in method_flags().items() if item.group is group}
        for method in {item.method for item in of_methods.values()} & switched.keys():
            made.append(
                click.Option([f"--{method}/--no-{method}"], default=None, help=f"{switched[method]}  [default: no]")
            )
            made[-1].heading = heading  # type: ignore[attr-defined]
        for name, flag in of_methods.items():
            text = phrase(flag.option.opt.help)
            text = f"{flag.method.upper()}: {text}." if flag.method in switched else f"{text[0].upper()}{text[1:]}."
            made.append(_option(flag.option, name, text, heading, (flag.method, flag.option.name)))
    return made


def _option(option: Option, name: str, text: str, heading: str, path: tuple[str, ...]) -> click.Option:
    """Returns an option whose value is None unless it is given: its default may depend on the model."""
    default = option.opt.default or _by_family(path, option.default)
    unset = () if option.several and not option.opt.separator else None
    made = click_option(option, heading, ranges=False, default=unset, show_default=False, required=False)
    made.name, made.help = name, f"{text}  [default: {default}]" if default else text
    return made


def given_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments of ``TrainConfig`` that were given on the command line."""
    settings = {name: value for name, value in values.items() if value is not None and value != ()}
    given = flat(settings)
    # --mlm-weight and --dims name their terms, which are added, like those of --loss-term.
    terms = tuple(dict.fromkeys((*given.pop("more_loss_terms", ()), *given.pop("loss_terms", ()))))
    if NO_TERMS in terms:
        return {**given, "loss_terms": tuple(name for name in terms if name != NO_TERMS)}
    return {**given, "more_loss_terms": terms} if terms else given


def _by_family(path: tuple[str, ...], default: Any) -> str:
    """Returns the default, then the defaults of model families that differ from it: ``5e-05; 3e-05 for bert-base``."""
    values: dict[str, list[str]] = {}
    common = plain(_at(families()["all"], path, default))
    for family, table in families().items():
        if family == "all":
            continue
        usual = plain(_at(table, path, common))
        values.setdefault(usual, []).append(family)
        for condition in conditions(family):
            value = plain(_at(condition["values"], path, None))
            if value not in ("", usual):
                about = f"{condition['loss']} on {family}" if "loss" in condition else f"{family} without --pairs"
                values.setdefault(value, []).append(about)
    if not common:
        common = max(values, key=lambda text: len(values[text]), default="")
    others = [f"{value} for {', '.join(names)}" for value, names in values.items() if value not in (common, "")]
    return "; ".join([*([common] if common else []), *others])


def _at(table: Any, path: tuple[str, ...], default: Any) -> Any:
    for key in path:
        if not isinstance(table, dict) or key not in table:
            return default
        table = table[key]
    return table
