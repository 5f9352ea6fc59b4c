"""Positives by deletion: the positive lacks some words of the sentence (SimCSE, table 1, "word deletion")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import rng
from .base import Augmentation, Block

__all__ = ["Delete", "DeleteOptions"]


@dataclass(frozen=True)
class DeleteOptions:
    """Options of deletion."""

    share: Annotated[float, Field(gt=0, lt=1, description="share of the words that is deleted")] = 0.1


class Delete(Augmentation):
    """The positive is the sentence without a random share of its words, at least one.

    All sets of words of that size are equally likely. A sentence of one word has no positive and is masked.
    """

    Options = DeleteOptions
    summary = "deletes random words of the positive (SimCSE's ablation)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int, epoch: int) -> dict[str, Block]:
        """The blocks ``anchor``, unchanged, and ``positive``."""
        split = [text.split() for text in texts]
        longest = max((len(words) for words in split), default=0)
        # One key per word; the words with the smallest keys are deleted.
        keys = np.stack([rng.bits(seed, epoch, rows, rng.DELETE + place) for place in range(max(longest, 1))], axis=1)
        positives = []
        for words, text, key in zip(split, texts, keys, strict=True):
            count = min(max(1, round(self.options.share * len(words))), max(len(words) - 1, 1))
            deleted = set(np.argsort(key[: len(words)], kind="stable")[:count].tolist())
            positives.append(" ".join(word for place, word in enumerate(words) if place not in deleted) or text)
        mask = np.array([len(words) > 1 for words in split])
        return {
            "anchor": Block(list(texts), ("anchor",), column=0),
            "positive": Block(positives, ("positive",), None if mask.all() else mask),
        }
