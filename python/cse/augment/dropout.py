"""Positives by dropout: the same sentence encoded twice (SimCSE, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from .base import Draws, Paired, Pairing

__all__ = ["Dropout"]


@dataclass(frozen=True)
class DropoutOptions:
    """Options of dropout positives."""

    mask: Annotated[
        Literal["independent", "shared"],
        Field(description="shared: both views use the same mask and are therefore identical (SimCSE's ablation)"),
    ] = "independent"


class Dropout(Pairing):
    """The positive is the sentence itself, encoded under a different dropout mask."""

    Options = DropoutOptions
    summary = "the sentence itself under another dropout mask (SimCSE)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns the sentences, which are their own positives."""
        return Paired(list(texts), columns=(0, None, None), shared=self.options.mask == "shared")

    def describe(self) -> str:
        """Returns a note if the mask is shared, else an empty string."""
        return "shared mask" if self.options.mask == "shared" else ""
