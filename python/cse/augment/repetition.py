"""Repetition of tokens (ESimCSE; Wu et al. 2022, arXiv:2109.04380, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .base import Draws, Edit

__all__ = ["Repetition", "RepetitionOptions"]


@dataclass(frozen=True)
class RepetitionOptions:
    """Options of the repetition; the default rate is the published value for BERT-base."""

    rate: Annotated[float, Field(gt=0, lt=1, description="fraction of the tokens that are repeated at most")] = 0.32
    variant: Annotated[
        Literal["paper", "release"],
        Field(description="largest number of repeated tokens, as in the paper or as in the released code"),
    ] = "paper"


class Repetition(Edit):
    """Repeats random tokens once each, so that the positive differs in length from the anchor.

    Tokens (word pieces) are repeated after truncation, as in the released code, so that the repeated sentence keeps its
    end and may be longer than the maximum length. Special tokens are not repeated. The number of repeated tokens is
    drawn uniformly from 0 to a maximum. In a sentence of n tokens, this is max(2, floor(rate * n)) but at most n, as in
    the paper; with ``variant="release"``, it is min(10, floor(rate * (n + 2))) - 1, where n + 2 counts the special
    tokens of BERT, and at least 0. As an edit of texts, for example in ``one-of``, the method repeats words.
    """

    Options = RepetitionOptions
    summary = "repeats tokens (ESimCSE)"
    edits_tokens = True

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with repeated words."""
        split = [text.split() for text in texts]
        edited = self.edit_tokens(split, rows, draws)
        return [
            text if len(new) == len(words) else " ".join(new)
            for text, words, new in zip(texts, split, edited, strict=True)
        ]

    def most(self, count: int) -> int:
        """Returns the largest number of repeated tokens in a sentence of ``count`` tokens."""
        if self.options.variant == "release":
            return max(0, min(10, int(self.options.rate * (count + 2))) - 1)
        return min(max(2, int(self.options.rate * count)), count)

    def most_tokens(self, count: int) -> int:
        """Returns the largest number of tokens after the repetition of some of ``count`` tokens."""
        return count + self.most(count)

    def edit_tokens(self, ids: Sequence[list[Any]], rows: npt.NDArray[np.int64], draws: Draws) -> list[list[Any]]:
        """Returns the sentences with repeated tokens; see ``Edit.edit_tokens``."""
        counts = draws.uniform(rows, "repetition count")[:, 0]
        places = draws.uniform(rows, "repetition", max(map(len, ids), default=0))
        edited = []
        for tokens, u, keys in zip(ids, counts, places, strict=True):
            count = int(u * (self.most(len(tokens)) + 1))
            repeated = set(np.argsort(keys[: len(tokens)], kind="stable")[:count].tolist())
            edited.append([token for place, token in enumerate(tokens) for _ in range(1 + (place in repeated))])
        return edited
