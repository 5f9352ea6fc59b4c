"""Positives by dropout: the same sentence encoded twice (SimCSE, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .base import Augmentation, Block

__all__ = ["Dropout"]


class Dropout(Augmentation):
    """The positive is the sentence itself under another dropout mask."""

    summary = "the sentence itself under another dropout mask (SimCSE)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int, epoch: int) -> dict[str, Block]:
        """Returns one block ``anchor`` with the views ``anchor`` and ``positive``."""
        return {"anchor": Block(list(texts), ("anchor", "positive"), column=0)}
