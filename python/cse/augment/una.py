"""Words replaced by TF-IDF: synthetic hard negatives of UNA, and positives of UDA.

UNA (Shu and Lampos 2024, arXiv:2401.02594) replaces words of high TF-IDF. UDA (Xie et al. 2020, arXiv:1904.12848,
section 2.2) replaces words of low TF-IDF.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..tfidf.options import Beta, Radius, Surface, check_radius
from .base import Draws, Edit, Example
from .options import UNAOptions as UNAOptions

if TYPE_CHECKING:
    from ..context import TextContext


class UNA(Edit):
    """Generates one synthetic hard negative per sentence, at steps 0, ``every``, 2 * ``every`` and so on."""

    Options = UNAOptions
    of_negatives = frozenset({"every", "use_as"})
    summary = "replaces words of high TF-IDF with words whose maximum TF-IDF in the corpus is similar (UNA)"

    def __init__(self, options: UNAOptions, context: TextContext) -> None:
        self.index = context.open_index(options.tokenizer)
        if options.tokenizer not in (None, self.index.tokenizer):
            raise InputError(
                f"--tfidf: the tokenizer of the index is {self.index.tokenizer}, but una.tokenizer requires "
                f"{options.tokenizer}; build another index with cse build-tfidf CORPUS --tokenizer {options.tokenizer}"
                + (" --model MODEL" if options.tokenizer == "wordpieces" else "")
            )
        super().__init__(replace(options, radius=self.index.ranks(options.radius)), context)

    @classmethod
    def implies(cls, options: UNAOptions) -> dict[str, Any]:
        """Returns the paper's objective, NT-Xent, if the negatives also form pairs."""
        return {"objective": "nt-xent"} if options.use_as == "pairs" else {}

    @classmethod
    def makes_pairs(cls, options: UNAOptions) -> bool:
        return options.use_as == "pairs"

    def applies(self, step: int) -> bool:
        """Returns True at steps 0, ``every``, 2 * ``every`` and so on; always False if ``every`` is 0."""
        every: int = self.options.every
        return every > 0 and step % every == 0

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        drawing = self.options.drawing()
        edited: list[str] = self.index.augment(
            list(texts), rows=rows.tolist(), seed=draws.seed, epoch=draws.epoch, **drawing
        )
        return edited

    def examples(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[Example]:
        """Returns the sentences and their negatives, with the spans of the replaced words."""
        shown = []
        for text, row in zip(texts, rows.tolist(), strict=True):
            drawing = self.options.drawing()
            negative, replaced = self.index.replacements(text, row=row, seed=draws.seed, epoch=draws.epoch, **drawing)
            spans = tuple(word.span for word in replaced), tuple(word.new_span for word in replaced)
            shown.append(Example(text, negative, *spans))
        return shown

    def describe(self) -> str:
        """Returns the main options as text, including ``replace_which`` and ``replace_with`` if either is random."""
        options = self.options
        if not options.every:
            return "off (--una-every 0)"
        steps = "at every step" if options.every == 1 else f"every {options.every} steps"
        text = f"{steps} as {options.use_as}, beta {options.beta:g}, "
        text += f"radius {options.radius} of {len(self.index):,} terms"
        if "random" in (options.replace_which, options.replace_with):
            text += f", --replace-which {options.replace_which} --replace-with {options.replace_with}"
        return text


@dataclass(frozen=True)
class UDAOptions:
    """Options of UDA."""

    beta: Beta = 0.3
    radius: Radius = None
    surface: Surface = None

    def __post_init__(self) -> None:
        check_radius(self.radius)


class UDA(Edit):
    """Replaces some words of low TF-IDF."""

    Options = UDAOptions
    summary = "replaces words of low TF-IDF, which carry little meaning (UDA)"

    def __init__(self, options: UDAOptions, context: TextContext) -> None:
        self.index = context.index
        super().__init__(replace(options, radius=self.index.ranks(options.radius)), context)

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        edited: list[str] = self.index.augment(
            list(texts), rows=rows.tolist(), seed=draws.seed, epoch=draws.epoch, mode="positive", **vars(self.options)
        )
        return edited
