"""Evaluations that need no labels: the geometry of embeddings, and retrieval of one half of a sentence by the other.

Alignment and uniformity are those of Wang and Isola (2020). In the split-half evaluation, the candidates for the first
half of a sentence are the second halves of all sentences, and vice versa. The mean reciprocal rank detects collapse
during training; it cannot rank good encoders, whose scores differ by little compared with the standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from ..data import readers
from ..data.corpus import HELD_OUT_WORDS, Corpus
from ..data.words import cut_in_two
from ..errors import InputError
from ..options import Opt
from .base import Encodes, Evaluation, Report, Sample, embed, read_pairs

Vectors = npt.NDArray[np.float64]


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    """Returns the rows of an ``(n, D)`` matrix normalised to unit length, in float64."""
    wide = vectors.astype(np.float64)
    points: Vectors = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return points


def nearest_others(vectors: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], Vectors]:
    """Finds the nearest other row for each row of an ``(n, D)`` matrix; returns indices and cosines, ``(n,)`` each."""
    points = unit(vectors)
    cosines = np.round(points @ points.T, DECIMALS)
    np.fill_diagonal(cosines, -np.inf)
    return cosines.argmax(1), cosines.max(1)


def alignment(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> float:
    """Returns the mean |x - y|^2 over corresponding rows of two ``(n, D)`` matrices, normalised to unit length."""
    return float(((unit(left) - unit(right)) ** 2).sum(1).mean())


def uniformity(vectors: npt.NDArray[np.floating]) -> float:
    """Returns log of the mean of exp(-2 |x - y|^2) over all pairs of normalised rows of an ``(n, D)`` matrix."""
    if len(vectors) < 2:
        return float("nan")
    points = unit(vectors)
    n, total = len(points), 0.0
    for start in range(0, n, 1024):  # in blocks, since n^2 cosines may not fit in memory
        squared = np.maximum(2.0 - 2.0 * (points[start : start + 1024] @ points.T), 0.0)
        total += float(np.exp(-2.0 * squared).sum())
    return float(np.log((total - n) / (n * (n - 1))))


def effective_rank(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the effective rank of an ``(n, D)`` matrix (Roy and Vetterli 2007), from 1 to min(n, D)."""
    if not np.isfinite(vectors).all():
        return float("nan")
    values = np.linalg.svd(unit(vectors), compute_uv=False)
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mean_cosine(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the mean cosine over all pairs of different rows of an ``(n, D)`` matrix; near 0 for isotropic rows."""
    if len(vectors) < 2:
        return float("nan")
    points = unit(vectors)
    n = len(points)
    return float((np.square(points.sum(0)).sum() - n) / (n * (n - 1)))


def cosine_variance(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the variance of the cosines of all pairs of rows of an ``(n, D)`` matrix, 1/D for random directions."""
    if len(vectors) < 2:
        return float("nan")
    points = unit(vectors)
    n = len(points)
    # The sum of all squared cosines is the squared norm of the (D, D) matrix of second moments.
    squares = (np.square(points.T @ points).sum() - n) / (n * (n - 1))
    return float(squares - mean_cosine(vectors) ** 2)


class Geometry(Evaluation):
    """Geometry of the embeddings of the sentences in a TSV file of scored pairs.

    Alignment is computed over the pairs with a gold score above 4. ``random_variance`` is the variance of the cosines
    of random directions, whose mean is 0: how far the encoder is from a uniform distribution of its embeddings.
    """

    summary = (
        "alignment, uniformity, effective rank, mean and variance of cosines, beside those of random vectors, on "
        "--data FILE.tsv (score, sentence1, sentence2)"
    )

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
        if data is None:
            raise InputError("--data: name a TSV file of score, sentence1, sentence2")
        self.pairs = read_pairs(data)
        self.texts = list(dict.fromkeys([*self.pairs.left, *self.pairs.right]))

    def work(self) -> int:
        return len(self.texts)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        vectors, left, right = embed(encoder, [self.texts, self.pairs.left, self.pairs.right], progress)
        close = self.pairs.gold > 4
        figures = {
            "sentences": len(self.texts),
            "alignment": alignment(left[close], right[close]) if close.any() else float("nan"),
            "uniformity": uniformity(vectors),
            "effective_rank": effective_rank(vectors),
            "mean_cosine": mean_cosine(vectors),
            "cosine_variance": cosine_variance(vectors),
            "random_variance": 1 / vectors.shape[1],
        }
        return Report([{"task": str(self.data), **figures}])


DECIMALS = 6
"""Decimals to which cosines of float32 vectors are rounded before they are ranked; further ones are noise."""
TIE = 10.0**-DECIMALS
"""Cosines that differ by less than this are treated as equal."""


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
        names = ("mrr", "mrr_se", "alignment", "uniformity")
        return {**{name: getattr(self, name) for name in names}, "found_first": float(self.found_first.mean())}


def half_ranks(
    left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the rank, from 1, of each right half ``(n, D)`` for the other half, ``(n,)``, and of each left half."""
    scores = unit(left) @ unit(right).T
    own = np.diagonal(scores)
    # The rank is the number of candidates, including the true half, whose cosine is at least that of the true half;
    # so all ranks of a collapsed encoder are n.
    forward = (scores >= own[:, None] - TIE).sum(1)
    backward = (scores >= own[None, :] - TIE).sum(0)
    # If the cosine of the true half is NaN, its rank is the worst.
    return np.where(forward > 0, forward, len(own)), np.where(backward > 0, backward, len(own))


def score_halves(
    model: Encodes, sentences: Sequence[str], progress: Callable[[int], None] | None = None
) -> HalvesScore:
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
    limit: Annotated[int, Ge(2), Opt("maximum number of sentences; the first ones in the corpus are used")] = 2000
    column: Annotated[str | None, Opt("column that holds the sentences, if the corpus is a table")] = None


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
        return 2 * len(self.texts)

    def __call__(self, encoder: Encodes, progress: Callable[[int], None] | None = None) -> Report:
        score = score_halves(encoder, self.texts, progress)
        row = {"task": str(self.data), "sentences": score.sentences, **score.to_dict()}
        return Report([row], samples=[Sample(f"{self.data}: mrr", score.per_sentence)])
