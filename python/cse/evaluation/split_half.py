"""A score without labels: each half of a sentence is used as a query for the other half.

For a first half, the candidates are the second halves of all sentences, and vice versa.

The mean reciprocal rank falls to chance level when embeddings collapse, so it detects collapse during training. It
cannot rank good encoders, because their scores differ by little compared with the standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ..data import readers
from ..data.corpus import HELD_OUT_WORDS, Corpus
from ..data.words import cut_in_two
from ..errors import InputError
from .base import Encodes, Evaluation, Report, Sample
from .geometry import alignment, uniformity, unit

# Cosines of float32 vectors that differ by less than this are treated as equal.
TIE = 1e-6


@dataclass(frozen=True)
class HalvesScore:
    """The split-half scores of a model; alignment and uniformity are those of the halves' embeddings."""

    mrr: float
    """Mean reciprocal rank over both directions, 0 to 1."""
    mrr_se: float
    """Standard error of ``mrr``."""
    alignment: float
    uniformity: float
    sentences: int
    per_sentence: npt.NDArray[np.float64]
    """``(n,)`` mean of the two reciprocal ranks of each sentence, for paired differences."""
    found_first: npt.NDArray[np.float64]
    """``(n,)`` 1 if each half of a sentence ranks first for the other, 0.5 if only one does, else 0."""

    def to_dict(self) -> dict[str, float]:
        """Returns the scores over all sentences; ``found_first`` is averaged over the sentences."""
        return {
            "mrr": self.mrr,
            "mrr_se": self.mrr_se,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
            "found_first": float(self.found_first.mean()),
        }


def half_ranks(
    left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Ranks the n candidates by cosine for each half, and returns the rank, from 1, of the true half.

    The true half is the other half of the same sentence. In a tie, it ranks last, so all ranks of a collapsed encoder
    are n, not 1.

    Args:
        left: ``(n, D)`` embeddings of the first halves.
        right: ``(n, D)`` embeddings of the second halves.

    Returns:
        ``(n,)`` ranks of the second halves, with the first halves as queries, and ``(n,)`` ranks vice versa.
    """
    scores = unit(left) @ unit(right).T
    own = np.diagonal(scores)
    # The rank is the number of candidates, including the true half, whose cosine is at least that of the true half.
    forward = (scores >= own[:, None] - TIE).sum(1)
    backward = (scores >= own[None, :] - TIE).sum(0)
    # If the cosine of the true half is NaN, its rank is the worst.
    return np.where(forward > 0, forward, len(own)), np.where(backward > 0, backward, len(own))


def score_halves(
    model: Encodes, sentences: Sequence[str], progress: Callable[[int], None] | None = None
) -> HalvesScore:
    """Encodes both halves of each sentence and computes the split-half scores.

    The standard error is NaN for fewer than two sentences.
    """
    halves = [cut_in_two(sentence) for sentence in sentences]
    texts = [first for first, _ in halves] + [second for _, second in halves]
    vectors = model.encode(texts, progress=progress)
    left, right = vectors[: len(halves)], vectors[len(halves) :]
    forward, backward = half_ranks(left, right)
    ranks = (1 / forward + 1 / backward) / 2
    first = ((forward == 1).astype(np.float64) + (backward == 1)) / 2
    return HalvesScore(
        mrr=float(ranks.mean()),
        mrr_se=float(ranks.std(ddof=1) / np.sqrt(len(ranks))) if len(ranks) > 1 else float("nan"),
        alignment=alignment(left, right),
        uniformity=uniformity(vectors),
        sentences=len(sentences),
        per_sentence=ranks,
        found_first=first,
    )


@dataclass(frozen=True)
class SplitHalfOptions:
    """Options of the split-half evaluation."""

    limit: Annotated[
        int, Field(ge=2, description="maximum number of sentences; the first ones in the corpus are used")
    ] = 2000
    column: Annotated[str | None, Field(description="column that holds the sentences, if the corpus is a table")] = None


class SplitHalf(Evaluation):
    """Split-half scores on the distinct sentences of at least 8 words in a corpus."""

    Options = SplitHalfOptions
    summary = (
        "mean reciprocal rank of half a sentence, with its other half as the query, on --data CORPUS; needs no labels"
    )

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        if data is None:
            raise InputError("--data: name a corpus with one sentence per line")
        corpus = Corpus.read(readers.resolve(data, options.column, "--set halves.column=NAME"))
        _, first = np.unique(corpus.hashes(), return_index=True)
        long = np.flatnonzero(corpus.word_counts() >= HELD_OUT_WORDS)
        self.texts = corpus.take(np.intersect1d(first, long)[: options.limit])
        if len(self.texts) < 2:
            raise InputError(f"{data}: at least two sentences of {HELD_OUT_WORDS} words or more are needed")

    def work(self) -> int:
        """Returns the number of halves."""
        return 2 * len(self.texts)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        """Returns a report with one row."""
        score = score_halves(encoder, self.texts, progress)
        row = {"task": str(self.data), "sentences": score.sentences, **score.to_dict()}
        return Report([row], samples=[Sample(f"{self.data}: mrr", score.per_sentence)])
