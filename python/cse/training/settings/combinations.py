"""Lists which positives, losses and forms of UNA can be combined, by validating a configuration for each combination.

The forms of UNA are: no UNA, UNA with synthetic negatives as further pairs, and UNA with them as hard negatives.
"""

from __future__ import annotations

from typing import Any

from ...augment import AUGMENTATIONS, PAIRS_POSITIVE
from ...errors import InputError
from .config import TrainConfig
from .precedence import resolve

LOSSES: dict[str, dict[str, Any]] = {
    "standard": {"loss": "standard"},
    "focal": {"loss": "focal"},
    "mixed": {"loss": "mixed"},
    "mixed, release": {"loss": "mixed", "mix_variant": "release"},
    "scd": {"loss": "scd"},
}
UNA: dict[str, dict[str, Any]] = {
    "": {},
    "UNA, pairs": {"negatives": ("una",), "options": {"una": {"use_as": "pairs"}}},
    "UNA, hard negatives": {"negatives": ("una",), "options": {"una": {"use_as": "hard-negatives"}}},
}


def combinations() -> dict[tuple[str, str, str], str]:
    """Returns the error message for each combination (positive, loss, form of UNA); "" if it is allowed."""
    found = {}
    for positive in AUGMENTATIONS.names():
        source = {"pairs": "pairs.csv"} if positive == PAIRS_POSITIVE else {"corpus": "corpus.txt"}
        for loss, chosen in LOSSES.items():
            for form, una in UNA.items():
                try:
                    resolve(TrainConfig(**{**source, "positive": positive, **chosen, **una}), "bert-base")
                    found[positive, loss, form] = ""
                except InputError as error:
                    found[positive, loss, form] = str(error)
    return found


def markdown() -> str:
    """Returns a Markdown table (rows: positives; columns: losses with forms of UNA), followed by the error messages."""
    found = combinations()
    columns = [(loss, form) for loss in LOSSES for form in UNA]
    # Positives with equal entries share a table row.
    rows: dict[tuple[str, ...], list[str]] = {}
    for positive in AUGMENTATIONS.names():
        rows.setdefault(tuple(found[positive, *column] for column in columns), []).append(positive)
    reasons = list(dict.fromkeys(reason for row in rows for reason in row if reason))
    heads = [f"{loss}{f', {form}' if form else ''}" for loss, form in columns]
    lines = [f"| positive | {' | '.join(heads)} |", f"| --- |{' --- |' * len(heads)}"]
    for row, names in rows.items():
        cells = ["yes" if not reason else f"no ({reasons.index(reason) + 1})" for reason in row]
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *(f"{number}. `{reason}`" for number, reason in enumerate(reasons, 1))])
