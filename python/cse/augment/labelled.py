"""Labelled positives and hard negatives from a file (supervised SimCSE; Gao et al. 2021, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .base import Augmentation, Block, Resources

__all__ = ["Labelled"]


class Labelled(Augmentation):
    """The positive, and the hard negative if there is a third column, are those of the row in ``--pairs``.

    Raises ``InputError`` if the run has no labelled pairs.
    """

    summary = "labelled positives, and hard negatives, from --pairs FILE (supervised SimCSE)"

    def __init__(self, options: Any, resources: Resources) -> None:
        super().__init__(options, resources)
        if resources.pairs is None:
            raise InputError("--positive labelled: needs --pairs FILE, a table of two or three columns")
        self.pairs = resources.pairs

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int, epoch: int) -> dict[str, Block]:
        """Returns the blocks ``anchor``, ``positive`` and, for triples, ``hard_negative``."""
        blocks = {
            "anchor": Block(list(texts), ("anchor",), column=0),
            "positive": Block(self.pairs.positives.take(rows), ("positive",), column=1),
        }
        if self.pairs.hard_negatives is not None:
            blocks["hard_negative"] = Block(self.pairs.hard_negatives.take(rows), ("hard_negative",), column=2)
        return blocks
