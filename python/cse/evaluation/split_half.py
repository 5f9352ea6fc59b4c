"""A score without labels: each sentence is cut in two, and the halves must find each other.

The mean reciprocal rank falls to chance when embeddings collapse, so it guards a run. Differences between good encoders
are small compared with its standard error.
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
from .base import Encodes, Evaluation, Report
from .geometry import alignment, uniformity, unit

__all__ = ["HalvesScore", "SplitHalf", "SplitHalfOptions", "reciprocal_ranks", "score_halves"]

# Cosines of float32 vectors that differ by less are counted as equal.
TIE = 1e-6


@dataclass(frozen=True)
class HalvesScore:
    """Mean reciprocal rank in both directions (0 to 1) with its standard error, alignment, uniformity."""

    mrr: float
    mrr_se: float
    alignment: float
    uniformity: float
    sentences: int
    per_sentence: npt.NDArray[np.float64]
    """(n,) mean of a sentence's two reciprocal ranks, for paired differences."""

    def to_dict(self) -> dict[str, float]:
        """Without the per-sentence values."""
        return {
            "mrr": self.mrr,
            "mrr_se": self.mrr_se,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
        }


def reciprocal_ranks(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """For each pair, the mean over both directions of 1 / rank of the true half among all n by cosine: ``(n,)``.

    Equal cosines rank before the true half, so a collapsed encoder scores 1/n, not 1.
    """
    scores = unit(left) @ unit(right).T
    own = np.diagonal(scores)
    # The true half is among those at least as good, so its rank from 1 is their number.
    forward = (scores >= own[:, None] - TIE).sum(1)
    backward = (scores >= own[None, :] - TIE).sum(0)
    # NaN gets the worst rank.
    forward, backward = (np.where(rank > 0, rank, len(own)) for rank in (forward, backward))
    result: npt.NDArray[np.float64] = (1 / forward + 1 / backward) / 2
    return result


def score_halves(
    model: Encodes, sentences: Sequence[str], progress: Callable[[int], None] | None = None
) -> HalvesScore:
    """Encodes both halves of each sentence and scores them."""
    halves = [cut_in_two(sentence) for sentence in sentences]
    texts = [first for first, _ in halves] + [second for _, second in halves]
    vectors = model.encode(texts, progress=progress)
    left, right = vectors[: len(halves)], vectors[len(halves) :]
    ranks = reciprocal_ranks(left, right)
    return HalvesScore(
        mrr=float(ranks.mean()),
        mrr_se=float(ranks.std(ddof=1) / np.sqrt(len(ranks))) if len(ranks) > 1 else float("nan"),
        alignment=alignment(left, right),
        uniformity=uniformity(vectors),
        sentences=len(sentences),
        per_sentence=ranks,
    )


@dataclass(frozen=True)
class SplitHalfOptions:
    """Options of the split-half evaluation."""

    limit: Annotated[int, Field(ge=2, description="at most so many sentences, the first of the file")] = 2000
    column: Annotated[str | None, Field(description="the column of a table")] = None


class SplitHalf(Evaluation):
    """The split-half score on the distinct sentences of a corpus with at least 8 words."""

    Options = SplitHalfOptions
    summary = "mean reciprocal rank of the halves of sentences of --data CORPUS, without labels"

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        if data is None:
            raise InputError("--data: name a corpus of one sentence per line")
        corpus = Corpus.read(readers.resolve(data, options.column))
        _, first = np.unique(corpus.hashes(), return_index=True)
        long = np.flatnonzero(corpus.word_counts() >= HELD_OUT_WORDS)
        self.texts = corpus.take(np.intersect1d(first, long)[: options.limit])
        if len(self.texts) < 2:
            raise InputError(f"{data}: at least two sentences of {HELD_OUT_WORDS} words or more are needed")

    def sentences(self) -> int:
        """Two halves of each sentence."""
        return 2 * len(self.texts)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        """One row."""
        score = score_halves(encoder, self.texts, progress)
        return Report([{"task": str(self.data), "sentences": score.sentences, **score.to_dict()}])
