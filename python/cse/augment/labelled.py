"""Labelled positives and hard negatives from a file (supervised SimCSE; Gao et al. 2021, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .base import Draws, Example, Paired, Pairing

__all__ = ["Labelled"]


class Labelled(Pairing):
    """Takes the positive, and the hard negative if there is a third column, from the anchor's row of ``--pairs``.

    Raises ``InputError`` if the run has no labelled pairs.
    """

    summary = "labelled positives, and hard negatives, from --pairs FILE (supervised SimCSE)"

    labelled = True

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns settings that keep the MLP head at test time, as supervised SimCSE does (appendix B).

        The trained weights are not averaged with the base weights, because this averaging was not evaluated with
        labelled pairs.
        """
        return {"keep_head": True, "merge_with_base": 0.0}

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        if context.pairs is None:
            raise InputError("--positive labelled: needs --pairs FILE, a table of two or three columns")
        self.pairs = context.pairs

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns anchors, positives and, for triples, hard negatives."""
        negatives = self.pairs.hard_negatives
        return Paired(
            list(texts),
            self.pairs.positives.take(rows),
            negatives=None if negatives is None else negatives.take(rows),
            columns=(0, 1, 2),
        )

    def examples(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[Example]:
        """Returns one example per row: the anchor, with the texts of all other columns."""
        columns = [corpus.take(rows) for corpus in self.pairs.corpora[1:]]
        return [Example(text, first, further=tuple(rest)) for text, first, *rest in zip(texts, *columns, strict=True)]
