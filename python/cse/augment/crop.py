"""Positives by cropping: the positive is a contiguous part of the sentence (SimCSE, table 1, "crop")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import rng
from .base import Augmentation, Block

__all__ = ["Crop", "CropOptions"]


@dataclass(frozen=True)
class CropOptions:
    """Options of cropping."""

    share: Annotated[float, Field(gt=0, lt=1, description="share of the words that is cut off")] = 0.1


class Crop(Augmentation):
    """The positive is the sentence without a share of its words, at least one, cut off at its ends.

    The start of what remains is uniform. A sentence of one word cannot be cropped: it has no positive and is masked.
    """

    Options = CropOptions
    summary = "cuts words off the ends of the positive (SimCSE's ablation)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int, epoch: int) -> dict[str, Block]:
        """The blocks ``anchor``, unchanged, and ``positive``."""
        positives, whole = [], []
        for text, place in zip(texts, rng.uniform(seed, epoch, rows, rng.CROP).tolist(), strict=True):
            words = text.split()
            cut = min(max(1, round(self.options.share * len(words))), len(words) - 1)
            start = int(place * (cut + 1))
            positives.append(" ".join(words[start : start + len(words) - cut]) or text)
            whole.append(len(words) > 1)
        mask = np.array(whole)
        return {
            "anchor": Block(list(texts), ("anchor",), column=0),
            "positive": Block(positives, ("positive",), None if mask.all() else mask),
        }
