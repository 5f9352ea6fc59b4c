"""Words removed, repeated or masked without further data.

- Cropping keeps a contiguous part of the sentence, and deletion removes random words (SimCSE, table 1, "crop" and "word
  deletion").
- Repetition repeats words (ESimCSE; Wu et al. 2022, arXiv:2109.04380, section 3.1).
- A masked span replaces a span of characters (Mirror-BERT; Liu et al. 2021, arXiv:2104.08027, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .. import rng
from .base import Draws, Edit


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


@dataclass(frozen=True)
class MaskedSpanOptions:
    """Options of the masked span; the defaults are the published values for sentences."""

    length: Annotated[int, Field(ge=1, description="number of characters to replace")] = 5
    shortest: Annotated[int, Field(ge=1, description="texts with fewer characters are not changed")] = 30
    mask: Annotated[str, Field(min_length=1, description="replacement text (RoBERTa's mask token is <mask>)")] = (
        "[MASK]"
    )


class MaskedSpan(Edit):
    """Replaces a random span of characters with a mask token; all positions are equally likely.

    The released code, in contrast, replaces the first occurrence of the span's text, even if the span was drawn
    elsewhere, and writes [MASK] for RoBERTa as well.
    """

    Options = MaskedSpanOptions
    summary = "replaces a span of characters with a mask token (Mirror-BERT)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with a masked span."""
        options: MaskedSpanOptions = self.options
        edited = []
        for text, u in zip(texts, draws.uniform(rows, "masked span")[:, 0], strict=True):
            if len(text) < max(options.shortest, options.length):
                edited.append(text)
                continue
            start = int(u * (len(text) - options.length + 1))
            edited.append(text[:start] + options.mask + text[start + options.length :])
        return edited
