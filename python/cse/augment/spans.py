"""Positives by independent cropping: two spans of the same sentence (Contriever; Izacard et al. 2022, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import rng
from ..errors import InputError
from ..registry import OnlyIf
from .base import Draws, Paired, Pairing

__all__ = ["Spans", "SpansOptions"]


@dataclass(frozen=True)
class SpansOptions:
    """Options of span positives."""

    shortest: Annotated[float, Field(gt=0, le=1, description="minimum span length, as a fraction of the words")] = 0.5
    longest: Annotated[float, Field(gt=0, le=1, description="maximum span length, as a fraction of the words")] = 0.9
    min_words: Annotated[int, Field(ge=2, description="sentences with fewer words are not cut (dropout positives)")] = 4
    least_words: Annotated[
        int,
        Field(ge=1, description="minimum number of words in a span of a long row; applies only with most_words"),
        OnlyIf("most_words"),
    ] = 8
    most_words: Annotated[
        int | None, Field(ge=1, description="maximum number of words in a span of a long row (default: no limit)")
    ] = None


class Spans(Pairing):
    """Anchor and positive are two contiguous spans of words, sampled independently.

    In a sentence of n words, the length of a span is drawn uniformly between ``shortest * n`` and ``longest * n``, then
    rounded. With ``most_words``, it is drawn between ``min(shortest * n, least_words)`` and
    ``min(longest * n, most_words)`` instead: spans of long rows are then short passages, while short rows are
    unaffected. All start positions are equally likely. Words are separated by whitespace.

    A sentence of fewer than ``min_words`` words is not cut: anchor and positive are the whole sentence, encoded under
    different dropout masks.

    Raises ``InputError`` if ``shortest > longest`` or ``least_words > most_words``.
    """

    Options = SpansOptions
    summary = "two random spans of the sentence, which may overlap (Contriever)"

    def __init__(self, options: SpansOptions, context: Any) -> None:
        super().__init__(options, context)
        if options.shortest > options.longest:
            raise InputError(
                f"spans.shortest: must be at most spans.longest ({options.longest}), got {options.shortest}"
            )

        if options.most_words is not None and options.least_words > options.most_words:
            raise InputError(
                f"spans.least_words: must be at most spans.most_words ({options.most_words}), got {options.least_words}"
            )

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns the spans."""
        share, place, other_share, other_place = (
            rng.uniform(draws.seed, draws.epoch, rows, rng.SPANS + number).tolist() for number in range(4)
        )
        first = [self._span(*each) for each in zip(texts, share, place, strict=True)]
        second = [self._span(*each) for each in zip(texts, other_share, other_place, strict=True)]
        return Paired(first, second)

    def _span(self, text: str, share: float, place: float) -> str:
        words = text.split()
        if len(words) < self.options.min_words:
            return text
        low, high = self.options.shortest, self.options.longest
        wanted = len(words) * (low + (high - low) * share)
        most = self.options.most_words
        if most is not None and (low * len(words) > self.options.least_words or high * len(words) > most):
            low, high = min(low * len(words), self.options.least_words), min(high * len(words), most)
            wanted = low + (high - low) * share
        length = max(1, round(wanted))
        start = int(place * (len(words) - length + 1))
        return " ".join(words[start : start + length])
