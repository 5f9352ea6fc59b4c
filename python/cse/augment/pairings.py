"""Pairings, which make the anchor and the positive of each row.

- ``dropout``: the same sentence encoded twice (SimCSE, section 3).
- ``halves``: the two halves of a sentence are positives of each other.
- ``labelled``: positives and hard negatives from a file (supervised SimCSE; Gao et al. 2021, section 4).
- ``parallel``: the same row of another file, such as a translation.
- ``spans``: two spans of the same sentence, cropped independently (Contriever; Izacard et al. 2022, section 3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from .. import rng
from .._core import is_blank
from ..data.corpus import Corpus
from ..data.words import cut_in_two
from ..errors import InputError
from ..options import Opt
from .base import Draws, Example, Paired, Pairing

if TYPE_CHECKING:
    from ..context import TextContext


@dataclass(frozen=True)
class DropoutOptions:
    """Options of dropout positives."""

    mask: Annotated[
        Literal["independent", "shared"],
        Opt("shared: both views use the same mask and are therefore identical (SimCSE's ablation)"),
    ] = "independent"


class Dropout(Pairing):
    """The positive is the sentence itself, encoded under a different dropout mask."""

    Options = DropoutOptions
    summary = "the sentence itself under another dropout mask (SimCSE)"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        return Paired(list(texts), columns=(0, None, None), shared=self.options.mask == "shared")

    def describe(self) -> str:
        """Returns a note if the mask is shared, else an empty string."""
        return "shared mask" if self.options.mask == "shared" else ""


class Halves(Pairing):
    """Anchor and positive are the first and the second half of the words."""

    summary = "the two halves of the sentence"

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        halves = [cut_in_two(text) for text in texts]
        mask = np.array([bool(second) for _, second in halves])
        positives = [second or first for first, second in halves]
        return Paired([first for first, _ in halves], positives, None if mask.all() else mask)


class Labelled(Pairing):
    """Takes the positive, and the hard negative if there is a third column, from the anchor's row of ``--pairs``."""

    summary = "labelled positives, and hard negatives, from --pairs FILE (supervised SimCSE)"

    def __init__(self, options: Any, context: TextContext) -> None:
        super().__init__(options, context)
        if context.pairs is None:
            raise InputError("--positive labelled needs --pairs FILE, a table of two or three columns")
        self.pairs = context.pairs

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        """Returns anchors, positives and, for triples, hard negatives."""
        positives, *negatives = [corpus.take(rows) for corpus in self.pairs.corpora[1:]]
        first, masks = negatives[0] if negatives else None, [each[rows] for each in self.pairs.usable]
        return Paired(list(texts), positives, None, first, (0, 1, 2), negatives[1:], negative_masks=masks)

    def examples(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[Example]:
        """Returns one example per row: the anchor, with the texts of all other columns."""
        columns = [corpus.take(rows) for corpus in self.pairs.corpora[1:]]
        return [Example(text, first, further=tuple(rest)) for text, first, *rest in zip(texts, *columns, strict=True)]


@dataclass(frozen=True)
class ParallelOptions:
    """Options of positives from a parallel file."""

    file: Annotated[str, Opt("text file with one positive per row of the corpus")] = ""


class Parallel(Pairing):
    """Takes the positive from the same row of another file, such as a translation; a blank or equal row has none."""

    Options = ParallelOptions
    summary = "positives from the same line of another file"

    def __init__(self, options: ParallelOptions, context: TextContext) -> None:
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
        others = self.others.take(rows)
        mask = np.array([not is_blank(other) and other != text for text, other in zip(texts, others, strict=True)])
        return Paired(list(texts), others, mask)


@dataclass(frozen=True)
class SpansOptions:
    """Options of span positives."""

    min_share: Annotated[
        float, Gt(0), Le(1), Opt("minimum length of a span, as a fraction of the words of its row")
    ] = 0.5
    max_share: Annotated[
        float, Gt(0), Le(1), Opt("maximum length of a span, as a fraction of the words of its row")
    ] = 0.9
    min_row_words: Annotated[
        int, Ge(2), Opt("minimum number of words of a row that is cut into spans; shorter rows get dropout positives")
    ] = 4
    min_span_words: Annotated[
        int, Ge(1), Opt("with max_span_words: minimum length of a span of a long row, in words", needs="max_span_words")
    ] = 8
    max_span_words: Annotated[
        int | None, Ge(1), Opt("maximum length of a span of a long row, in words (default: no limit)")
    ] = None


class Spans(Pairing):
    """Anchor and positive are two contiguous spans of words, sampled independently.

    In a sentence of n words, the length of a span is drawn uniformly between ``min_share * n`` and ``max_share * n``;
    with ``max_span_words``, between ``min(min_share * n, min_span_words)`` and ``min(max_share * n, max_span_words)``.
    All start positions are equally likely. A sentence of fewer than ``min_row_words`` words is not cut.
    """

    Options = SpansOptions
    summary = "two random spans of the sentence, which may overlap (Contriever)"

    def __init__(self, options: SpansOptions, context: TextContext) -> None:
        super().__init__(options, context)
        if options.max_span_words is not None and options.min_span_words > options.max_span_words:
            raise InputError(
                f"spans.min_span_words: must be at most spans.max_span_words ({options.max_span_words}), got "
                f"{options.min_span_words}"
            )

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> Paired:
        share, place, other_share, other_place = (
            rng.uniform(draws.seed, draws.epoch, rows, rng.SPANS + number).tolist() for number in range(4)
        )
        first = [self._span(*row) for row in zip(texts, share, place, strict=True)]
        second = [self._span(*row) for row in zip(texts, other_share, other_place, strict=True)]
        return Paired(first, second)

    def _span(self, text: str, share: float, place: float) -> str:
        words = text.split()
        if len(words) < self.options.min_row_words:
            return text
        low, high = self.options.min_share, self.options.max_share
        wanted = len(words) * (low + (high - low) * share)
        most = self.options.max_span_words
        if most is not None and (low * len(words) > self.options.min_span_words or high * len(words) > most):
            low, high = min(low * len(words), self.options.min_span_words), min(high * len(words), most)
            wanted = low + (high - low) * share
        length = max(1, round(wanted))
        start = int(place * (len(words) - length + 1))
        return " ".join(words[start : start + length])
