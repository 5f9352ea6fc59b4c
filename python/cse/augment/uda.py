"""UDA: positives by replacing words of low TF-IDF (Xie et al. 2020, arXiv:1904.12848, section 2.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from ..tfidf.options import check_radius
from .base import Draws, Edit

__all__ = ["UDA", "UDAOptions"]


@dataclass(frozen=True)
class UDAOptions:
    """Options of UDA."""

    beta: Annotated[
        float, Field(ge=0, le=1, description="mean probability that a word is replaced, before clipping at 1")
    ] = 0.3
    radius: Annotated[
        int | str | None,
        AfterValidator(check_radius),
        Field(
            description="largest difference in TF-IDF rank between a word and its replacement: N, or P% of the V terms "
            "indexed; None: min(4000, V/100)"
        ),
    ] = None
    surface: Annotated[
        Literal["keep", "plain"] | None,
        Field(description="keep: only replaced words change; plain: lower-cased terms joined by spaces"),
    ] = None


class UDA(Edit):
    """Replaces some words of low TF-IDF.

    Replacements are sampled as in UNA, but the words of lowest TF-IDF are the most likely to be replaced.
    """

    Options = UDAOptions
    summary = "replaces words of low TF-IDF, which carry little meaning (UDA)"

    def __init__(self, options: UDAOptions, context: Any) -> None:
        self.index = context.index
        super().__init__(replace(options, radius=self.index.ranks(options.radius)), context)

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        """Returns the sentences with some words replaced."""
        options = self.options
        edited: list[str] = self.index.augment(
            list(texts),
            rows=rows.tolist(),
            seed=draws.seed,
            epoch=draws.epoch,
            beta=options.beta,
            radius=options.radius,
            surface=options.surface,
            mode="positive",
        )
        return edited
