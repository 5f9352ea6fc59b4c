"""AEDA: inserted punctuation marks (Karimi, Rossi and Prati 2021, arXiv:2108.13230)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Gt, Le

from cse.augment.base import Draws, Edit
from cse.options import Opt

MARKS = (".", ",", "!", "?", ";", ":")


@dataclass(frozen=True)
class AEDAOptions:
    """Options of AEDA; the default is the published value."""

    share: Annotated[float, Gt(0), Le(1), Opt("n words get at most floor(share * n + 1) marks")] = 0.3


class AEDA(Edit):
    """Inserts punctuation marks, drawn from ``. , ! ? ; :``, before random words, at most one mark before each word.

    In a sentence of n words, the number of marks is drawn uniformly from 1 to floor(share * n + 1); at most n marks are
    inserted.
    """

    Options = AEDAOptions
    summary = "inserts punctuation marks (AEDA)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        split = [text.split() for text in texts]
        longest = max(map(len, split), default=0)
        counts = draws.uniform(rows, "aeda count")[:, 0]
        places, marks = draws.uniform(rows, "aeda place", longest), draws.uniform(rows, "aeda mark", longest)
        edited = []
        for text, words, u, keys, kinds in zip(texts, split, counts, places, marks, strict=True):
            if not words:
                edited.append(text)
                continue
            most = int(self.options.share * len(words) + 1)
            chosen = set(np.argsort(keys[: len(words)], kind="stable")[: 1 + int(u * most)].tolist())
            new = [
                f"{MARKS[int(kinds[place] * len(MARKS))]} {word}" if place in chosen else word
                for place, word in enumerate(words)
            ]
            edited.append(" ".join(new))
        return edited
