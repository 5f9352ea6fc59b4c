"""A score without labels: each held-out sentence is cut in two, and the halves must find each other.

The mean reciprocal rank falls to nothing when embeddings collapse, so it guards a run; differences between good
encoders are small beside its error, so it does not choose between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..models.encoder import SentenceEncoder
from .geometry import alignment, uniformity, unit

__all__ = ["HalvesScore", "cut_in_two", "reciprocal_ranks", "score_halves"]


# Cosines of float32 vectors this close are equal.
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
    """(n,) mean of a sentence's two reciprocal ranks: for paired differences."""

    def to_dict(self) -> dict[str, float]:
        """Without the per-sentence values."""
        return {
            "mrr": self.mrr,
            "mrr_se": self.mrr_se,
            "alignment": self.alignment,
            "uniformity": self.uniformity,
        }


def cut_in_two(sentence: str) -> tuple[str, str]:
    """The first and the second half of the words; the first is the longer where they are odd."""
    words = sentence.split()
    middle = (len(words) + 1) // 2
    return " ".join(words[:middle]), " ".join(words[middle:])


def reciprocal_ranks(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """(n,): for each pair, the mean over both directions of 1/rank of the true half among all n by cosine.

    Ties count against it, so that a collapsed encoder, for which all are equal, scores 1/n and not 1.
    """
    scores = unit(left) @ unit(right).T
    own = np.diagonal(scores)
    # The true half is among those at least as good, so its rank from 1 is their number.
    forward = (scores >= own[:, None] - TIE).sum(1)
    backward = (scores >= own[None, :] - TIE).sum(0)
    # Not-a-number is as good as nothing: the worst rank.
    forward, backward = (np.where(rank > 0, rank, len(own)) for rank in (forward, backward))
    result: npt.NDArray[np.float64] = (1 / forward + 1 / backward) / 2
    return result


def score_halves(model: SentenceEncoder, sentences: Sequence[str]) -> HalvesScore:
    """Encodes both halves of each sentence and scores them."""
    halves = [cut_in_two(sentence) for sentence in sentences]
    vectors = model.encode([first for first, _ in halves] + [second for _, second in halves])
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
