"""Which of several encoders to take: the fastest of those that lose little against the best."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import Report
from .significance import WORSE, score_of
from .verdict import judge

TIMED = 256  # number of texts by which the speed is measured
LOSS = 3.0
"""Points that a faster encoder may lose."""


@dataclass(frozen=True)
class Cost:
    """What an encoder costs: seconds for a thousand texts, and megabytes on disk, NaN if they are not known."""

    seconds: float
    megabytes: float


def cost_of(encoder: Any, texts: Sequence[str]) -> Cost:
    """Measures an encoder on at most ``TIMED`` of the texts, after a few that are not counted."""
    chosen = list(texts[:TIMED])
    encoder.encode(chosen[:8])
    began = time.perf_counter()
    encoder.encode(chosen)
    seconds = 1000 * (time.perf_counter() - began) / len(chosen)
    listed = encoder.files() if hasattr(encoder, "files") else []
    return Cost(seconds, sum(path.stat().st_size for _, path in listed) / 1e6 if listed else float("nan"))


def recommend(names: Sequence[str], reports: Sequence[Report], costs: Sequence[Cost]) -> str:
    """Returns a sentence that names the fastest of the encoders that lose at most ``LOSS`` points against the best,
    according to the interval of the first measure; the best has the highest score by it. ``reports`` are of the same
    evaluation. A difference that these examples cannot show is no reason to take the faster one."""
    scores = [score_of(sample.values, sample.gold, sample.classes) for sample in (each.samples[0] for each in reports)]
    best = scores.index(max(scores))
    records = [judge(reports[best].samples, report.samples).measures[0] for report in reports]
    lost = [math.inf if "low" not in record else -record["low"] for record in records]
    lost[best] = 0.0
    level = [place for place, most in enumerate(lost) if most <= LOSS]
    chosen = min(level, key=lambda place: costs[place].seconds)
    faster = [place for place, cost in enumerate(costs) if cost.seconds < costs[best].seconds]
    if chosen != best:
        return (
            f"recommended: {names[chosen]}, the fastest that loses at most {LOSS:g} points against {names[best]}, "
            "which has the highest score"
        )
    less = ""
    if faster and all(records[place]["word"] == WORSE for place in faster):
        less = "; the faster ones are worse"
    elif faster:
        shown = max(records[place].get("visible", math.inf) for place in faster)
        seen = f"a difference of {shown:.1f} points would have shown" if math.isfinite(shown) else "they are too few"
        less = f"; by these rows, a faster one may lose more than {LOSS:g} points ({seen})"
    return f"recommended: {names[best]}, which has the highest score{less}"
