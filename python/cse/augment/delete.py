"""Deletion: removes random words of the sentence (SimCSE, table 1, "word deletion")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import rng
from .base import Draws, Edit

__all__ = ["Delete", "DeleteOptions"]


@dataclass(frozen=True)
class DeleteOptions:
    """Options of deletion."""

    share: Annotated[float, Field(gt=0, lt=1, description="fraction of the words to delete")] = 0.1


class Delete(Edit):
    """Deletes a fraction of the words (at least one word), chosen at random.

    All subsets of that size are equally likely. A sentence of one word is not changed.
    """

    Options = DeleteOptions
    summary = "deletes random words (SimCSE's ablation)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the shortened sentences."""
        split = [text.split() for text in texts]
        longest = max((len(words) for words in split), default=0)
        # One key per word; the words with the smallest keys are deleted.
        streams = [rng.DELETE + place for place in range(max(longest, 1))]
        keys = np.stack([rng.bits(draws.seed, draws.epoch, rows, stream) for stream in streams], axis=1)
        shortened = []
        for words, text, key in zip(split, texts, keys, strict=True):
            count = min(max(1, round(self.options.share * len(words))), len(words) - 1)
            deleted = set(np.argsort(key[: len(words)], kind="stable")[: max(count, 0)].tolist())
            kept = [word for place, word in enumerate(words) if place not in deleted]
            shortened.append(" ".join(kept) if deleted else text)
        return shortened
