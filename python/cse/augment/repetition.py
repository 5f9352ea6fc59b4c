"""Repetition of words (ESimCSE; Wu et al. 2022, arXiv:2109.04380, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .base import Draws, Edit

__all__ = ["Repetition", "RepetitionOptions"]


@dataclass(frozen=True)
class RepetitionOptions:
    """Options of the repetition; the default is the published value for BERT-base."""

    rate: Annotated[float, Field(gt=0, lt=1, description="at most max(2, rate * n) of n words are repeated")] = 0.32


class Repetition(Edit):
    """Repeats random words once each, so that the positive differs in length from the anchor.

    In a sentence of n words, the number of repeated words is drawn uniformly from 0 to max(2, floor(rate * n)), but
    never exceeds n. The paper repeats word pieces, but this method repeats whole words, so that it does not depend on a
    tokenizer. The paper's code repeats fewer than ten; this method has no such limit.
    """

    Options = RepetitionOptions
    summary = "repeats words (ESimCSE)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with repeated words."""
        split = [text.split() for text in texts]
        counts = draws.uniform(rows, "repetition count")[:, 0]
        places = draws.uniform(rows, "repetition", max(map(len, split), default=0))
        edited = []
        for text, words, u, keys in zip(texts, split, counts, places, strict=True):
            most = min(max(2, int(self.options.rate * len(words))), len(words))
            count = int(u * (most + 1))
            repeated = set(np.argsort(keys[: len(words)], kind="stable")[:count].tolist())
            new = [f"{word} {word}" if place in repeated else word for place, word in enumerate(words)]
            edited.append(" ".join(new) if repeated else text)
        return edited
