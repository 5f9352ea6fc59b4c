"""Evaluations that need no labels: the geometry of embeddings, and retrieval of one half of a sentence by the other.

Alignment and uniformity are as in Wang and Isola (2020). The candidates for one half of a sentence are the other
halves of all sentences. Their mean reciprocal rank detects collapse; it cannot rank good encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import numpy.typing as npt

from ..data import readers
from ..data.corpus import HELD_OUT_WORDS, Corpus
from ..data.words import cut_in_two
from ..errors import InputError
from ..identity import first_rows
from ..options import NoOptions
from ..ties import at_least
from .base import (
    FEWEST,
    Encodes,
    Evaluation,
    Mask,
    Progress,
    Report,
    Sample,
    Seen,
    check_apart,
    embed,
    needed,
    read_pairs,
)
from .options import SplitHalfOptions

Vectors = npt.NDArray[np.float64]


def unit(vectors: npt.NDArray[np.floating]) -> Vectors:
    """Returns the rows of an ``(n, D)`` matrix normalised to unit length, in float64."""
    wide = np.asarray(vectors, dtype=np.float64)
    points: Vectors = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return points


def nearest_others(vectors: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.int64], Vectors]:
    """Finds the nearest other row for each row of an ``(n, D)`` matrix, the first of those that are equally near;
    returns indices and cosines, ``(n,)`` each."""
    points = unit(vectors)
    cosines = points @ points.T
    np.fill_diagonal(cosines, -np.inf)
    largest = cosines.max(1)
    return at_least(cosines, largest[:, None]).argmax(1), largest


def alignment(left: npt.NDArray[np.floating], right: npt.NDArray[np.floating]) -> float:
    """Returns the mean |x - y|^2 over corresponding rows of two ``(n, D)`` matrices, normalised to unit length."""
    return float(((unit(left) - unit(right)) ** 2).sum(1).mean())


def _mean_of_pairs(total: float, n: int) -> float:
    """Returns the mean over pairs of different rows of a function that sums to ``total`` and is 1 for equal rows."""
    return float((total - n) / (n * (n - 1))) if n > 1 else float("nan")


def uniformity(vectors: npt.NDArray[np.floating]) -> float:
    """Returns log of the mean of exp(-2 |x - y|^2) over all pairs of normalised rows of an ``(n, D)`` matrix.

    Rows of 0, as of blank texts, stay 0: their distance from each other is 0, and from other rows 1.
    """
    points, total = unit(vectors), 0.0
    norms: Vectors = np.any(points, axis=1).astype(np.float64)
    for start in range(0, len(points), 1024):  # in blocks, since n^2 cosines may not fit in memory
        both = norms[start : start + 1024, None] + norms
        squared = np.maximum(both - 2.0 * (points[start : start + 1024] @ points.T), 0.0)
        total += float(np.exp(-2.0 * squared).sum())
    return float(np.log(_mean_of_pairs(total, len(points))))


def effective_rank(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the effective rank of an ``(n, D)`` matrix (Roy and Vetterli 2007), from 1 to min(n, D)."""
    values = np.linalg.svd(unit(vectors), compute_uv=False)
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def mean_cosine(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the mean cosine over all pairs of different rows of an ``(n, D)`` matrix; near 0 for isotropic rows."""
    return _mean_of_pairs(np.square(unit(vectors).sum(0)).sum(), len(vectors))


def cosine_variance(vectors: npt.NDArray[np.floating]) -> float:
    """Returns the variance of the cosines of all pairs of rows of an ``(n, D)`` matrix, 1/D for random directions."""
    points = unit(vectors)
    # The sum of all squared cosines is the squared norm of the (D, D) matrix of second moments.
    return _mean_of_pairs(np.square(points.T @ points).sum(), len(points)) - mean_cosine(vectors) ** 2


class Geometry(Evaluation):
    """Geometry of the embeddings of scored pairs; the alignment is over the pairs with a gold score above 4."""

    summary = (
        "alignment, uniformity, effective rank, mean and variance of cosines, also for random vectors, on "
        "--data FILE.tsv (score, sentence1, sentence2)"
    )

    def __init__(self, options: NoOptions, data: str | None) -> None:
        super().__init__(options, data)
        self.pairs = read_pairs(needed(data, "a TSV file of score, sentence1, sentence2"))
        self.texts = list(dict.fromkeys([*self.pairs.left, *self.pairs.right]))

    def work(self) -> int:
        return len(self.texts)

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        vectors, left, right = embed(encoder, [self.texts, self.pairs.left, self.pairs.right], progress)
        close = self.pairs.gold > 4
        figures = {
            "sentences": len(self.texts),
            "alignment": alignment(left[close], right[close]) if close.any() else float("nan"),
            "uniformity": uniformity(vectors),
            "effective_rank": effective_rank(vectors),
            "mean_cosine": mean_cosine(vectors),
            "cosine_variance": cosine_variance(vectors),
            "random_variance": 1 / vectors.shape[1],  # of the cosines of random directions, whose mean is 0
        }
        return Report([{"task": str(self.data), **figures}])


@dataclass(frozen=True)
class HalvesScore:
    """The split-half scores of a model: the mean reciprocal rank over both directions, 0 to 1, its standard error, and
    alignment and uniformity of the embeddings of the halves."""

    mrr: float
    mrr_se: float
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
    # The number of candidates whose cosine is not below the true half's: n in a collapsed encoder.
    forward = at_least(scores, own[:, None]).sum(1)
    backward = at_least(scores, own).sum(0)
    # With NaN, the rank is the worst.
    return np.where(forward > 0, forward, len(own)), np.where(backward > 0, backward, len(own))


def score_halves(model: Encodes, sentences: Sequence[str], progress: Progress | None = None) -> HalvesScore:
    halves = [cut_in_two(sentence) for sentence in sentences]
    vectors = model.encode([half for place in (0, 1) for half in (each[place] for each in halves)], progress=progress)
    left, right = np.split(vectors, 2)
    forward, backward = half_ranks(left, right)
    ranks = (1 / forward + 1 / backward) / 2
    first = ((forward == 1).astype(np.float64) + (backward == 1)) / 2
    error = float(ranks.std(ddof=1) / np.sqrt(len(ranks))) if len(ranks) > 1 else float("nan")
    scores = (float(ranks.mean()), error, alignment(left, right), uniformity(vectors))
    return HalvesScore(*scores, len(sentences), per_sentence=ranks, found_first=first)


class SplitHalf(Evaluation):
    """Split-half scores on the distinct sentences of at least 8 words in a corpus, or on sentences in memory."""

    Options = SplitHalfOptions
    summary = (
        "mean reciprocal rank of half a sentence, with its other half as the query, on --data CORPUS; needs no labels"
    )

    def __init__(self, options: SplitHalfOptions, data: str | list[str] | None) -> None:
        super().__init__(options, data)
        path = needed(data, "a corpus with one sentence per line")
        if not isinstance(path, str):
            self.texts = path
            return
        corpus = Corpus.read(readers.resolve(path, options.column, "--set halves.column=NAME"))
        first = first_rows(corpus.row_keys())
        long = np.flatnonzero(corpus.word_counts() >= HELD_OUT_WORDS)
        self.texts = corpus.take(np.intersect1d(first, long)[: options.limit])
        if len(self.texts) < 2:
            raise InputError(f"{data}: at least two sentences of {HELD_OUT_WORDS} words or more are needed")

    def work(self) -> int:
        return 2 * len(self.texts)

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        score = score_halves(encoder, self.texts, progress)
        row = {"task": str(self.data), "sentences": score.sentences, **score.to_dict()}
        return Report([row], samples=[Sample(f"{self.data}: mrr", score.per_sentence)])


class PairSearch(Evaluation):
    """How often each text of a pair ranks the other first among all, on two lists of texts in memory."""

    by_pairs = True

    def __init__(self, options: NoOptions, data: tuple[list[str], list[str]]) -> None:
        super().__init__(options, data)
        self.columns = data

    def known(self, seen: Seen) -> Mask:
        return seen(self.columns[0]) | seen(self.columns[1])

    def only(self, kept: Mask) -> PairSearch | None:
        left, right = (list(compress(each, kept)) for each in self.columns)
        return PairSearch(self.options, (left, right)) if len(left) >= FEWEST else None

    def work(self) -> int:
        return sum(map(len, self.columns))

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        """Returns a report whose sample is 100, 50 or 0 where both texts, one or neither ranks the other first."""
        columns = embed(encoder, self.columns, progress)
        check_apart(np.concatenate(columns))
        ranks = half_ranks(*columns)
        found = np.asarray(sum(50.0 * (each == 1) for each in ranks))
        task = "held-out pairs that find each other"
        row = {"task": task, "pairs": len(found), "score": float(found.mean())}
        return Report([row], samples=[Sample(task, found, unit="pairs")])
