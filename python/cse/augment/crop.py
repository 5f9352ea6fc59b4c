"""Cropping: keeps a contiguous part of the sentence (SimCSE, table 1, "crop")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import rng
from .base import Draws, Edit

__all__ = ["Crop", "CropOptions"]


@dataclass(frozen=True)
class CropOptions:
    """Options of cropping."""

    share: Annotated[float, Field(gt=0, lt=1, description="fraction of the words to cut off")] = 0.1


class Crop(Edit):
    """Cuts a fraction of the words (at least one word) off the ends of the sentence.

    All positions of the remaining part are equally likely. A sentence of one word is not cropped.
    """

    Options = CropOptions
    summary = "cuts words off the ends of the sentence (SimCSE's ablation)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the cropped sentences."""
        cropped = []
        for text, place in zip(texts, rng.uniform(draws.seed, draws.epoch, rows, rng.CROP).tolist(), strict=True):
            words = text.split()
            cut = min(max(1, round(self.options.share * len(words))), len(words) - 1)
            start = int(place * (cut + 1))
            cropped.append(" ".join(words[start : start + len(words) - cut]) if cut > 0 else text)
        return cropped
