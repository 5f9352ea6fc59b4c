"""Repeating a run from its ``config.toml``, with changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .precedence import merge, other_limit
from .train_config import TrainConfig

__all__ = ["repeated"]

# Settings that do not affect what is computed, apart from rounding. If only these change, the run is repeated with all
# its values.
ELSEWHERE = {"output", "name", "device", "threads", "log_every", "loggers", "data", "allow_partial", "cache"}


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
        if set(changes) <= ELSEWHERE:
            return kept, given
        kept = {name: value for name, value in given.items() if name != "name"}
    if other := other_limit(changes):
        kept.pop(other, None)
    off = set(TrainConfig(**kept).methods) - set(TrainConfig(**merge(changes, kept)).methods)
    return {name: value for name, value in kept.items() if name not in off}, None
