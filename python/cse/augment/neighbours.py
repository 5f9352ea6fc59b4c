"""Positives from the same row of a parallel file, or from one of the next rows of the corpus."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..data.corpus import Corpus
from ..errors import InputError
from .base import Draws, Paired, Pairing

__all__ = ["NextSentence", "NextSentenceOptions", "Parallel", "ParallelOptions"]


@dataclass(frozen=True)
class ParallelOptions:
    """Options of positives from a parallel file."""

    file: Annotated[str, Field(description="text file with one positive per row of the corpus")] = ""


class Parallel(Pairing):
    """Takes the positive from the same row of another file, such as a paraphrase, a translation or a generated query.

    If that row is blank or equal to the sentence, the sentence has no positive. Raises ``InputError`` if no file is
    named, or if the file and the corpus differ in their number of rows.
    """

    Options = ParallelOptions
    summary = "positives from the same line of another file"

    def __init__(self, options: ParallelOptions, context: Any) -> None:
        super().__init__(options, context)
        if not options.file:
            raise InputError("--positive parallel: no file is named; give --set parallel.file=FILE")
        context.depends_on(options.file)
        self.others = Corpus.read([options.file])
        if len(self.others) != len(context.corpus):
            raise InputError(
                f"parallel.file: {options.file} has {len(self.others):,} rows, but the corpus has "
                f"{len(context.corpus):,}; give one positive for each row of the corpus, in order"
            )

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns the sentences and the same rows of the other file."""
        others = self.others.take(rows)
        mask = np.array([bool(other.strip()) and other != text for text, other in zip(texts, others, strict=True)])
        return Paired(list(texts), others, mask)


@dataclass(frozen=True)
class NextSentenceOptions:
    """Options of next-sentence positives; SimCSE's "next 3 sentences" is ``within=3``."""

    within: Annotated[int, Field(ge=1, le=1000, description="the positive is drawn from this many following rows")] = 1


class NextSentence(Pairing):
    """Takes the positive from the next rows of the corpus, which must be running text in order (SimCSE, table 2).

    Blank rows, held-out rows (see ``cse.data.held_out``) and their duplicates, and rows past the end of the corpus are
    not used as positives: if one of these is drawn for a sentence, the sentence has no positive.
    """

    Options = NextSentenceOptions
    summary = "the next sentence of the corpus, or one of the next few (SimCSE's ablation)"

    def __init__(self, options: NextSentenceOptions, context: Any) -> None:
        super().__init__(options, context)
        self.corpus: Corpus = context.corpus
        self.context = context

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns the sentences and the rows drawn as their positives."""
        further = 1 + (draws.uniform(rows, "next sentence")[:, 0] * self.options.within).astype(np.int64)
        wanted = rows + further
        train: npt.NDArray[np.int64] = self.context.rows
        at = np.minimum(np.searchsorted(train, wanted), len(train) - 1)
        valid = train[at] == wanted
        return Paired(list(texts), self.corpus.take(np.where(valid, wanted, rows)), valid)
