"""Detects a contrastive task that the model solves from the first step, so that little is learned."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["SaturationCheck"]

FIRST_STEPS = 10
SOLVED = 0.99


class SaturationCheck:
    """Checks the mean probability that the softmax of the loss assigns to the positive in the first 10 steps.

    If the mean is above 0.99, the gradients are mostly noise, which AdamW scales up to updates of the usual size. The
    weights then drift, and the scores fall. This happens when a model that was already trained contrastively is trained
    with dropout positives at a low temperature.
    """

    def __init__(self, positive: str, temperature: float) -> None:
        self.positive, self.temperature = positive, temperature
        self.note: str | None = None
        self.first: list[float] = []
        """The probabilities in the first steps; checkpoints store them and ``note``."""

    def update(self, records: list[dict[str, Any]]) -> str | None:
        """Adds log records; returns the note when the first 10 steps show that the task is solved, else None."""
        if self.note is not None or len(self.first) >= FIRST_STEPS:
            return None
        self.first += [record["p_pos"] for record in records if math.isfinite(record.get("p_pos", math.nan))]
        first = self.first[:FIRST_STEPS]
        if len(first) < FIRST_STEPS:
            return None
        mean = sum(first) / len(first)
        if mean <= SOLVED:
            return None
        remedy = "raise --temperature" if self.positive == "spans" else "use --positive spans or raise --temperature"
        self.note = (
            f"The task is solved from the start: in the first {FIRST_STEPS} steps the positive has a probability of "
            f"{mean:.4f} among the candidates (--positive {self.positive}, temperature {self.temperature:g}), so the "
            f"model learns little and may drift; {remedy}."
        )
        return self.note
