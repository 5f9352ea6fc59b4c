"""Mirror-BERT: a masked span of characters (Liu et al. 2021, arXiv:2104.08027, section 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, MinLen

from cse.augment.base import Draws, Edit
from cse.options import Opt


@dataclass(frozen=True)
class MaskedSpanOptions:
    """Options of the masked span; the defaults are the published values for sentences."""

    length: Annotated[int, Ge(1), Opt("number of characters to replace")] = 5
    shortest: Annotated[int, Ge(1), Opt("texts with fewer characters are not changed")] = 30
    mask: Annotated[str, MinLen(1), Opt("replacement text (RoBERTa's mask token is <mask>)")] = "[MASK]"


class MaskedSpan(Edit):
    """Replaces a random span of characters with a mask token; all positions are equally likely.

    The released code, in contrast, replaces the first occurrence of the span's text, even if the span was drawn
    elsewhere, and writes [MASK] for RoBERTa as well.
    """

    Options = MaskedSpanOptions
    summary = "replaces a span of characters with a mask token (Mirror-BERT)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        options: MaskedSpanOptions = self.options
        edited = []
        for text, u in zip(texts, draws.uniform(rows, "masked span")[:, 0], strict=True):
            if len(text) < max(options.shortest, options.length):
                edited.append(text)
                continue
            start = int(u * (len(text) - options.length + 1))
            edited.append(text[:start] + options.mask + text[start + options.length :])
        return edited
