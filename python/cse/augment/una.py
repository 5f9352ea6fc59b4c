"""UNA: synthetic hard negatives by replacing words of high TF-IDF (Shu and Lampos 2024, arXiv:2401.02594)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from ..errors import InputError
from ..tfidf.options import DrawOptions, check_radius
from .base import Draws, Edit, Example

__all__ = ["UNA", "UNAOptions"]


@dataclass(frozen=True)
class UNAOptions:
    """Options of UNA. The defaults are those of the paper, except for the radius (paper: 4000)."""

    every: Annotated[
        int,
        Field(ge=0, description="use UNA on steps 0, N, 2N, ...; 0: never", json_schema_extra={"flag": "--una-every"}),
    ] = 5
    use_as: Annotated[
        Literal["pairs", "hard-negatives"],
        Field(
            description="add negatives as further anchor-positive pairs (as published), or as hard negatives only",
            json_schema_extra={"flag": "--una-as"},
        ),
    ] = "pairs"
    beta: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="mean replacement probability before clipping at 1",
            json_schema_extra={"flag": "--beta"},
        ),
    ] = 0.5
    radius: Annotated[
        int | str | None,
        AfterValidator(check_radius),
        Field(
            description="window in ranks, or a percentage of the vocabulary; None: min(4000, V/100)",
            json_schema_extra={"flag": "--radius"},
        ),
    ] = None
    surface: Annotated[
        Literal["keep", "plain"] | None,
        Field(
            description="keep the original text between terms, or join terms by spaces",
            json_schema_extra={"flag": "--surface"},
        ),
    ] = None
    replace_which: Annotated[
        Literal["tfidf", "random"],
        Field(description="how words to replace are selected", json_schema_extra={"flag": "--replace-which"}),
    ] = "tfidf"
    replace_with: Annotated[
        Literal["radius", "random"],
        Field(description="how replacements are selected", json_schema_extra={"flag": "--replace-with"}),
    ] = "radius"

    tokenizer: Annotated[
        Literal["unicode", "whitespace", "treebank"] | None,
        Field(description="required tokenizer of the index; None: any"),
    ] = None

    def drawing(self) -> DrawOptions:
        """Returns the sampling options as keyword arguments of ``TfidfIndex.augment``."""
        return {
            "beta": self.beta,
            "radius": self.radius,
            "surface": self.surface,
            "replace_which": self.replace_which,
            "replace_with": self.replace_with,
        }


class UNA(Edit):
    """Generates one synthetic hard negative per sentence, on steps 0, ``every``, 2 ``every``, ...

    Raises ``InputError`` if there is no index, or if its tokenizer is not the one in the options.
    """

    Options = UNAOptions
    summary = "replaces words of high TF-IDF by words of similar maximum TF-IDF (UNA)"

    def __init__(self, options: UNAOptions, context: Any) -> None:
        self.index = context.index
        if options.tokenizer not in (None, self.index.tokenizer):
            raise InputError(
                f"--tfidf: the tokenizer of the index is {self.index.tokenizer}, and this recipe needs "
                f"{options.tokenizer}; build it with cse build-tfidf CORPUS --tokenizer {options.tokenizer}"
            )
        super().__init__(replace(options, radius=self.index.ranks(options.radius)), context)

    @classmethod
    def implies(cls, options: UNAOptions) -> dict[str, Any]:
        """Negatives as further pairs are trained by NT-Xent over all views, as published."""
        return {"objective": "nt-xent"} if options.use_as == "pairs" else {}

    @classmethod
    def makes_pairs(cls, options: UNAOptions) -> bool:
        """Returns whether ``use_as`` is ``pairs``."""
        return options.use_as == "pairs"

    def applies(self, step: int) -> bool:
        """Returns True on steps 0, ``every``, 2 ``every``, ...; always False if ``every`` is 0."""
        every: int = self.options.every
        return every > 0 and step % every == 0

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with replaced words."""
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
            spans = tuple(each.span for each in replaced), tuple(each.new_span for each in replaced)
            shown.append(Example(text, negative, *spans))
        return shown

    def describe(self) -> str:
        """Returns ``every``, ``use_as``, ``beta``, ``radius`` and any non-default selection modes as text."""
        options = self.options
        if not options.every:
            return "off (every 0 steps)"
        text = f"every {options.every} steps as {options.use_as}, beta {options.beta:g}, "
        text += f"radius {options.radius} of {len(self.index):,} terms"
        if "random" in (options.replace_which, options.replace_with):
            text += f", replace which {options.replace_which}, with {options.replace_with}"
        return text
