"""What a run tells whoever watches it. This one is silent; the command line brings one that prints."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..tfidf.index import Replacement
    from .loop import RunResult

__all__ = ["Reporter", "dumps"]


class Reporter:
    """Hears of each stage of a run, in this order."""

    def beginning(self, facts: dict[str, Any]) -> None:
        """Device, model, loss, corpus, steps."""

    def negatives(self, examples: list[tuple[str, str, list[Replacement]]]) -> None:
        """A few sentences, their synthetic negatives and the replaced spans."""

    def note(self, text: str) -> None:
        """Something that takes a while has begun."""

    def training(self, steps: int, seconds_per_step: float) -> None:
        """The loop begins; an estimate of a step's time."""

    def stepped(self, step: int, record: dict[str, Any]) -> None:
        """A step is done."""

    def evaluated(self, step: int, record: dict[str, Any]) -> None:
        """The model was scored."""

    def stopped(self, why: str) -> None:
        """The run was interrupted."""

    def ended(self, result: RunResult) -> None:
        """All is saved."""


def dumps(value: object, indent: int | None = None) -> str:
    """JSON that every parser reads: a number that is not finite becomes null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
