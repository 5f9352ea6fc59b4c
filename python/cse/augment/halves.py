"""Positives by splitting: the two halves of a sentence are positives of each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..data.words import cut_in_two
from .base import Draws, Paired, Pairing

__all__ = ["Halves"]


class Halves(Pairing):
    """Anchor and positive are the first and the second half of the words.

    A sentence of one word has no second half, so it has no positive and is masked.
    """

    summary = "the two halves of the sentence"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns the halves."""
        halves = [cut_in_two(text) for text in texts]
        mask = np.array([bool(second) for _, second in halves])
        positives = [second or first for first, second in halves]
        return Paired([first for first, _ in halves], positives, None if mask.all() else mask)
