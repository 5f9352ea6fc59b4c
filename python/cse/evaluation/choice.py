"""Which of several encoders to take: the fastest of those that cannot be told from the best."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .base import Report
from .significance import CANNOT_TELL, score_of
from .verdict import judge

TIMED = 256  # number of texts by which the speed is measured


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
    """Returns a sentence that names the fastest of the encoders whose verdict against the best is "cannot tell"; the
    best has the highest score by the first measure. ``reports`` are of the same evaluation."""
    scores = [score_of(sample.values, sample.gold, sample.classes) for sample in (each.samples[0] for each in reports)]
    best = scores.index(max(scores))
    words = [judge(reports[best].samples, report.samples).word for report in reports]
    words[best] = CANNOT_TELL
    level = [place for place, word in enumerate(words) if word == CANNOT_TELL]
    chosen = min(level, key=lambda place: costs[place].seconds)
    fastest = min(range(len(names)), key=lambda place: costs[place].seconds)
    if chosen == best:
        less = "" if best == fastest else "; the faster ones are worse"
        return f"recommended: {names[best]}, which has the highest score{less}"
    kept = f"keep {names[chosen]}, the fastest"
    if len(level) == len(names):
        return f"cannot tell which is better: {kept}"
    return (
        f"recommended: {names[chosen]}, the fastest that cannot be told from {names[best]}, which has the highest score"
    )
