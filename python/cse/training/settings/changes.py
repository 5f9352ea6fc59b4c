"""Which settings may change when a run is resumed, repeating a run with changes, and settings that can be combined.

The declaration of a setting says whether it may change; see ``cse.options.Opt.may_change``. Which positives,
losses and forms of UNA can be combined is found by validating a configuration for each combination. The forms of UNA
are: no UNA, UNA with synthetic negatives as further pairs, and UNA with them as hard negatives.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...errors import InputError
from ...losses import LOSS_TERMS
from ...options import options_of
from .config import SETTINGS, TrainConfig, flag, stored_forms
from .precedence import merge, other_limit, resolve


def may_change(*, computed: bool = True) -> set[str]:
    """Returns the settings that a resumed run may change; if not ``computed``, those that affect no result."""
    kinds = ("yes", "elsewhere") if computed else ("elsewhere", "place")
    return {name for name, option in SETTINGS.items() if option.opt.may_change in kinds}


def check_changes(stored: TrainConfig, changes: dict[str, Any], where: str, remedy: str) -> TrainConfig:
    """Returns the configuration of a resumed run: the stored one, changed to the given values.

    Raises ``InputError`` if a setting that may not change is changed; the message lists all such settings.
    """
    tables = {name: {**stored.options.get(name, {}), **table} for name, table in changes.get("options", {}).items()}
    before = None if stored.given is None else {**stored.given, **changes}
    changed = stored.replace(**{**changes, "options": {**stored.options, **tables}, "given": before})
    return check_equal(stored, changed, where, remedy)


def check_equal(stored: TrainConfig, changed: TrainConfig, where: str, remedy: str) -> TrainConfig:
    """Returns ``changed``; raises ``InputError`` if it differs from ``stored`` in a setting that may not change."""
    problems = [
        f"{flag(name)} {_text(getattr(changed, name))} (the run has {_text(getattr(stored, name))})"
        for name in SETTINGS
        if name not in may_change() and getattr(changed, name) != getattr(stored, name)
    ]
    for method in changed.options:
        new, old = (config.options_of(method) for config in (changed, stored))
        problems += [
            f"{option.opt.flag or f'{method}.{option.name}'} {getattr(new, option.name)} (the run has "
            f"{getattr(old, option.name)})"
            for option in options_of(type(new))
            if getattr(new, option.name) != getattr(old, option.name)
        ]
    if problems:
        raise InputError(
            f"{where}: {'; '.join(problems)} cannot change in a run that has begun; start a new run, or {remedy}"
        )
    return changed


def same_value(name: str, one: Any, other: Any) -> bool:
    """Returns whether two values of a setting are equal; paths are, if they lead to the same place."""
    if name in SETTINGS and SETTINGS[name].opt.paths and isinstance(one, tuple) and isinstance(other, tuple):
        return [*map(os.path.abspath, one)] == [*map(os.path.abspath, other)]
    return bool(one == other)


def differences(config: TrainConfig, before: TrainConfig, chosen: Mapping[str, Any]) -> list[str]:
    """Returns the settings and options in which a configuration differs from ``before``, without those in ``chosen``.

    Each is a text with both values. Options of methods that the configuration does not use are left out.
    """
    named = stored_forms(chosen)
    apart = {*named, other_limit(chosen), "name", "preset"}
    pairs = {flag(name): (getattr(before, name), getattr(config, name)) for name in SETTINGS.keys() - apart}
    pairs |= {
        f"{method}.{name}": (value, config.options[method].get(name, value))
        for method, table in before.options.items()
        if method in config.options
        for name, value in table.items()
        if name not in named.get("options", {}).get(method, {})
    }
    changed = sorted((name, old, new) for name, (old, new) in pairs.items() if old is not None and old != new)
    return [f"{name} {_text(new)} instead of {_text(old)}" for name, old, new in changed]


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def repeated(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the stored values that are to be merged with the changes, and the table ``given`` of the new run.

    The table ``given`` holds the values that the user gave for a run, as opposed to derived values.

    If the changes do not affect what is computed, all values of the run except its name are returned.

    Otherwise only the values that the user gave for the run are returned, with None for ``given``; the other values are
    derived again. Options of methods that the changes switch off are left out. If the changes set only one of
    ``epochs`` and ``max_steps``, the other is left out. In a file without the table ``given``, written by hand or by an
    older version, all values count as given by the user.

    Args:
        stored: The contents of the configuration file.
        changes: Values from the command line.
    """
    kept = {name: value for name, value in stored.items() if name not in ("name", "given")}
    table: dict[str, Any] | None = stored.get("given")
    if table is not None:
        if set(changes) <= may_change(computed=False):
            return kept, table
        kept = {name: value for name, value in table.items() if name != "name"}
    if other := other_limit(changes):
        kept.pop(other, None)
    off = set(TrainConfig(**kept).methods) - set(TrainConfig(**merge(changes, kept)).methods)
    return {name: value for name, value in kept.items() if name not in off}, None


LOSSES: dict[str, dict[str, Any]] = {
    "standard": {"loss": "standard"},
    "focal": {"loss": "focal"},
    "mixed": {"loss": "mixed"},
    "mixed, release": {"loss": "mixed", "mix_variant": "release"},
}
UNA: dict[str, dict[str, Any]] = {
    "": {},
    "UNA, pairs": {"negatives": ("una",), "options": {"una": {"use_as": "pairs"}}},
    "UNA, hard negatives": {"negatives": ("una",), "options": {"una": {"use_as": "hard-negatives"}}},
}


def losses() -> dict[str, dict[str, Any]]:
    """Returns the settings of each loss by its name in the table of combinations."""
    terms = {name: {"loss": name} for name in LOSS_TERMS.names() if LOSS_TERMS.get(name).is_loss}
    return {**LOSSES, **terms}


def combinations() -> dict[tuple[str, str, str], str]:
    """Returns the error message for each combination (positive, loss, form of UNA); "" if it is allowed."""
    messages = {}
    for positive in AUGMENTATIONS.names():
        source = {"pairs": "pairs.csv"} if positive == PAIRS_POSITIVE else {"corpus": "corpus.txt"}
        for loss, chosen in losses().items():
            for form, una in UNA.items():
                try:
                    resolve(TrainConfig(**{**source, "positive": positive, **chosen, **una}), "bert-base")
                    messages[positive, loss, form] = ""
                except InputError as error:
                    messages[positive, loss, form] = str(error)
    return messages


def table_of_combinations() -> str:
    """Returns a Markdown table (rows: positives; columns: losses with forms of UNA), followed by the error messages."""
    messages = combinations()
    columns = [(loss, form) for loss in losses() for form in UNA]
    # Positives with equal entries share a table row.
    rows: dict[tuple[str, ...], list[str]] = {}
    for positive in AUGMENTATIONS.names():
        rows.setdefault(tuple(messages[positive, *column] for column in columns), []).append(positive)
    reasons = list(dict.fromkeys(reason for row in rows for reason in row if reason))
    heads = [f"{loss}{f', {form}' if form else ''}" for loss, form in columns]
    lines = [f"| positive | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for row, names in rows.items():
        cells = ["yes" if not reason else f"no ({reasons.index(reason) + 1})" for reason in row]
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, 1))])
