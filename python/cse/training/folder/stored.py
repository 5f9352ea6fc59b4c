"""Stored runs: which of their settings a run that repeats or resumes them has. This module does not import torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...augment import AUGMENTATIONS
from ...errors import InputError
from ...options import options_of
from ..settings.flat import flat, merge, other_limit
from ..settings.given import TrainConfig
from ..settings.names import SETTINGS, flag
from ..settings.resolve import Resolved
from .find import CONFIG, config_file, find_checkpoint

MAY_CHANGE = {name for name, option in SETTINGS.items() if option.opt.may_change}
"""The settings that a resumed run may change."""


def differences(settings: Resolved, before: TrainConfig, chosen: Mapping[str, Any]) -> list[str]:
    """Returns the values in which settings differ from ``before``, without those in ``chosen``, as texts."""
    apart = {*flat(chosen), other_limit(chosen), "name", "preset"}
    apart |= {"negatives"} if chosen.keys() & AUGMENTATIONS.flagged() else set()
    old, new = merge(before.values()), flat(settings.values())
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


def resumed_config(
    resume: str | Path,
    changes: dict[str, Any] | None = None,
    where: str = "--resume",
    remedy: str = "omit these options",
) -> TrainConfig:
    """Returns the configuration with which a run is resumed: the stored one with the changes in ``changes``."""
    folder = find_checkpoint(Path(resume))
    stored, file = TrainConfig.from_toml(config_file(folder)), folder.parent.parent / CONFIG
    if file.exists():
        stored = _checked(stored, TrainConfig.from_toml(file), str(file), "undo the change")
    # A value with which the run began is no change where it was resolved since, as a preset; so are other spellings of
    # paths, and auto, for which the run keeps the precision that was chosen when it began.
    begun = {} if stored.given is None else TrainConfig(**stored.given).values()
    kept = {name: value for name, value in begun.items() if name not in MAY_CHANGE}
    kept |= {name: getattr(stored, name) for name, option in SETTINGS.items() if option.opt.paths}
    changes = {
        name: value
        for name, value in (changes or {}).items()
        if (name, value) != ("precision", "auto") and not (name in kept and _same(name, value, kept[name]))
    }
    given = None if stored.given is None else TrainConfig(**merge(changes, stored.given)).values()
    changed = stored.replace(**{**merge(changes, stored.values()), **changes, "given": given})
    return _checked(stored, changed, where, remedy)


def _checked(stored: TrainConfig, changed: TrainConfig, where: str, remedy: str) -> TrainConfig:
    """Returns ``changed``; raises ``InputError`` that lists the settings that differ although they may not change."""
    old, new = (_all(config, changed) for config in (stored, changed))
    problems = [
        f"{flag(name)} {text(new[name])} (the run has {text(old[name])})"
        for name in new
        if name not in MAY_CHANGE and new[name] != old[name]
    ]
    if problems:
        raise InputError(
            f"{where}: {'; '.join(problems)} cannot change in a run that has begun; start a new run, or {remedy}"
        )
    return changed


def _all(config: TrainConfig, named: TrainConfig) -> dict[str, Any]:
    """Returns all settings, and all options of the methods whose options are in ``named``, by flat name."""
    values = {name: getattr(config, name) for name in SETTINGS}
    for method in named.options:
        options = config.options_of(method)
        values |= {f"{method}.{option.name}": getattr(options, option.name) for option in options_of(type(options))}
    return values


def _same(name: str, one: Any, other: Any) -> bool:
    """Returns whether two values of a setting are equal; paths are, if they lead to the same place."""
    if name in SETTINGS and SETTINGS[name].opt.paths and isinstance(one, tuple) and isinstance(other, tuple):
        return [*map(os.path.abspath, one)] == [*map(os.path.abspath, other)]
    return bool(one == other)
