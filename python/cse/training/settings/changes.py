"""Repeating a run with changes, and settings that can be combined.

Which positives, losses and forms of UNA can be combined is found by validating a configuration for each combination.
The forms of UNA are: no UNA, UNA with synthetic negatives as further pairs, and UNA with them as hard negatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...errors import InputError
from ...losses import LOSS_TERMS
from .config import TrainConfig
from .precedence import other_limit, resolve
from .values import SETTINGS, flag, flat, merge

SAME_RESULTS = {name for name, option in SETTINGS.items() if option.opt.same_results}
"""The settings that do not affect what a run computes."""


def differences(config: TrainConfig, before: TrainConfig, chosen: Mapping[str, Any]) -> list[str]:
    """Returns the values in which a configuration differs from ``before``, without those in ``chosen``, as texts."""
    apart = {
        *flat(chosen),
        other_limit(chosen),
        "name",
        "preset",
        *(["negatives"] if chosen.keys() & AUGMENTATIONS.flagged() else []),
    }
    old, new = merge(before.values()), {**vars(config), **merge(config.values())}
    return [
        f"{name if '.' in name else flag(name)} {text(new[name])} instead of {text(old[name])}"
        for name in sorted(old.keys() - apart, key=flag)
        if name in new and new[name] != old[name]
    ]


def text(value: object) -> str:
    """Returns a value for a message."""
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def repeated(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Returns the stored values that are to be merged with the changes, and the table ``given`` of the new run.

    The table ``given`` of a configuration file holds the values that the user gave, as opposed to derived values. If
    the changes do not affect what is computed, all values of the run except its name are returned. Otherwise only those
    that the user gave, with None for ``given``: the others are derived again. In a file without the table, all values
    count as given. Options of methods that the changes switch off are left out and, if the changes set only one of
    ``epochs`` and ``max_steps``, the other.
    """
    kept = flat({name: value for name, value in stored.items() if name not in ("name", "given")})
    table: dict[str, Any] | None = stored.get("given")
    if table is not None:
        if set(changes) <= SAME_RESULTS:
            return kept, table
        kept = flat({name: value for name, value in table.items() if name != "name"})
    kept.pop(other_limit(changes) or "", None)
    off = set(TrainConfig(**kept).methods) - set(TrainConfig(**merge(changes, kept)).methods)
    return {name: value for name, value in kept.items() if name.rpartition(".")[0] not in off}, None


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
