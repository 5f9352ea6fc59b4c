"""Positives by dropout: the same sentence encoded twice (SimCSE, section 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .base import Draws, Paired, Pairing

__all__ = ["Dropout"]


class Dropout(Pairing):
    """The positive is the sentence itself under another dropout mask."""

    summary = "the sentence itself under another dropout mask (SimCSE)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns the sentences, which are their own positives."""
        return Paired(list(texts), columns=(0, None, None))
