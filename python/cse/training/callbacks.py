"""Callbacks of a training run. This module does not import torch, so that the command line starts quickly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..augment.base import Example

__all__ = ["Callback"]


class Callback:
    """Base class of callbacks of a training run. Methods are listed in call order and do nothing by default."""

    def on_train_begin(self, facts: dict[str, str], examples: list[Example]) -> None:
        """Called before the first evaluation.

        Args:
            facts: Descriptions of device, model, loss, corpus and so on, by name.
            examples: Sentences with their augmented forms.
        """

    def on_status(self, text: str) -> None:
        """Called before a phase of the run that takes time; ``text`` is its name."""

    def on_progress(self, text: str, done: int, total: int, unit: str) -> None:
        """Called repeatedly during a phase before training, and at its end with ``done`` equal to ``total``.

        Args:
            text: Name of the phase.
            done: Number of units done.
            total: Number of units; 0 while it is not known.
            unit: ``bytes`` or ``sentences``.
        """

    def on_warning(self, text: str) -> None:
        """The run goes on, but probably not as intended."""

    def on_step_end(self, step: int, steps: int) -> None:
        """Called after each step.

        Args:
            step: Number of steps done.
            steps: Number of steps of the run.
        """

    def on_log(self, record: dict[str, Any]) -> None:
        """Called with the metrics of each step.

        The calls are made every ``log_every`` steps, one per step since then, so that the device is not synchronised at
        every step.
        """

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """Called after each evaluation with the number of steps done and the scores by name."""

    def on_interrupt(self, why: str) -> None:
        """Called after a KeyboardInterrupt, when the encoder has been saved; ``why`` names the step and the folder."""

    def on_train_end(self, result: Any) -> None:
        """Called with the ``RunResult`` when all files have been saved."""
