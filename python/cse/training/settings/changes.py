"""Which settings may change when a run is resumed, and repeating a run from its ``config.toml`` with changes.

The declaration of a setting says whether it may change; see ``cse.training.parts.fields.MayChange``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ...registry import option_notes
from ..parts.fields import MayChange, marker
from .config import TrainConfig
from .groups import flag, hints
from .precedence import merge, other_limit


def may_change(*, computed: bool = True) -> set[str]:
    """Returns the settings that a resumed run may change; if not ``computed``, only those that affect no result."""
    found = {name: marker(hint, MayChange) for name, hint in hints().items()}
    return {name for name, each in found.items() if each is not None and (computed or not each.computed)}


def check_changes(stored: TrainConfig, given: dict[str, Any], where: str, remedy: str) -> TrainConfig:
    """Returns the configuration of a resumed run: the stored one, changed to the given values.

    Raises ``InputError`` if a setting that may not change is changed; the message lists all such settings.
    """
    tables = {name: {**stored.options.get(name, {}), **table} for name, table in given.get("options", {}).items()}
    before = None if stored.given is None else {**stored.given, **given}
    changed = stored.replace(**{**given, "options": {**stored.options, **tables}, "given": before})
    return check_equal(stored, changed, where, remedy)


def check_equal(stored: TrainConfig, changed: TrainConfig, where: str, remedy: str) -> TrainConfig:
    """Returns ``changed``; raises ``InputError`` if it differs from ``stored`` in a setting that may not change."""
    problems = [
        f"{flag(name)} {_text(getattr(changed, name))} (the run has {_text(getattr(stored, name))})"
        for name in type(stored).model_fields
        if name not in {*may_change(), "options", "given"} and getattr(changed, name) != getattr(stored, name)
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
    given: dict[str, Any] | None = stored.get("given")
    if given is not None:
        if set(changes) <= may_change(computed=False):
            return kept, given
        kept = {name: value for name, value in given.items() if name != "name"}
    if other := other_limit(changes):
        kept.pop(other, None)
    off = set(TrainConfig(**kept).methods) - set(TrainConfig(**merge(changes, kept)).methods)
    return {name: value for name, value in kept.items() if name not in off}, None
