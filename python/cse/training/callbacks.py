"""Callbacks of a training run. Imports no torch, so that the command line can define its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..augment.base import Example

__all__ = ["Callback"]


class Callback:
    """Callbacks of a training run, in call order. All do nothing by default."""

    def on_train_begin(self, facts: dict[str, str], examples: list[Example]) -> None:
        """Before the first evaluation: device, model, loss, corpus, steps; augmented sentences."""

    def on_status(self, text: str) -> None:
        """A part of the run that takes time begins."""

    def on_warning(self, text: str) -> None:
        """The run goes on, but probably not as intended."""

    def on_step_end(self, step: int, steps: int) -> None:
        """A step is done; metrics follow in ``on_log``."""

    def on_log(self, record: dict[str, Any]) -> None:
        """The metrics of a step, one call per step, every ``log_every`` steps."""

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """The encoder was evaluated."""

    def on_interrupt(self, why: str) -> None:
        """The run was interrupted, and what it had was saved."""

    def on_train_end(self, result: Any) -> None:
        """Everything is saved; ``result`` is the ``RunResult``."""
