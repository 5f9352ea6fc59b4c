"""Checks that a resumed run has the settings it began with, except for those that may change."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..registry import option_notes
from .settings import flag
from .train_config import TrainConfig

__all__ = ["MAY_CHANGE", "check_changes", "check_equal"]

# Settings whose values do not affect the steps that a run has already done.
MAY_CHANGE = {
    "epochs",
    "max_steps",
    "eval_every",
    "log_every",
    "save_every",
    "keep_checkpoints",
    "patience",
    "device",
    "threads",
    "output",
    "name",
    "data",
    "allow_partial",
    "cache",
    "loggers",
}


def check_changes(stored: TrainConfig, given: dict[str, Any]) -> TrainConfig:
    """Returns the configuration of a resumed run: the stored one, changed to the given values.

    Raises ``InputError`` if a setting outside ``MAY_CHANGE`` is changed; the message lists all such settings.
    """
    tables = {name: {**stored.options.get(name, {}), **table} for name, table in given.get("options", {}).items()}
    before = None if stored.given is None else {**stored.given, **given}
    changed = stored.replace(**{**given, "options": {**stored.options, **tables}, "given": before})
    return check_equal(stored, changed, "--resume", "leave it out")


def check_equal(stored: TrainConfig, changed: TrainConfig, where: str, remedy: str) -> TrainConfig:
    """Returns ``changed``; raises ``InputError`` if it differs from ``stored`` in a setting outside ``MAY_CHANGE``."""
    problems = [
        f"{flag(name)} {_text(getattr(changed, name))} (the run has {_text(getattr(stored, name))})"
        for name in type(stored).model_fields
        if name not in {*MAY_CHANGE, "options", "given"} and getattr(changed, name) != getattr(stored, name)
    ]
    for method in changed.options:
        new, old = (config.options_of(method) for config in (changed, stored))
        problems += [
            f"{note['flag'] or f'{method}.{name}'} {getattr(new, name)} (the run has {getattr(old, name)})"
            for name, note in option_notes(type(new)).items()
            if getattr(new, name) != getattr(old, name)
        ]
    if problems:
        raise InputError(
            f"{where}: {'; '.join(problems)} cannot change in a run that has begun; start a new run, or {remedy}"
        )
    return changed


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
