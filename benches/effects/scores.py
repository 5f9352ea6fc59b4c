"""STS scores of an encoder from the cosines of its pairs, and intervals of differences between encoders.

Every run is resampled with the same draws of pairs, and the scores of each draw are stored with the run. Any two runs
can be compared later by their stored scores alone: the difference of the scores of one draw is a paired resample.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
SEVEN = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
FILES = dict(zip([f"sts{year}.test" for year in range(12, 17)] + ["stsb.test", "sickr.test"], SEVEN, strict=True))
FILES["stsb.dev"] = "STS-B dev"
RESAMPLES = 1000


@dataclass(frozen=True)
class Pairs:
    """Gold scores ``(n,)`` of pairs, the positions of both sentences among the texts, and the group of each pair.

    Pairs that share a sentence, directly or through other pairs, form a group. Groups are resampled as a whole.
    """

    gold: Vector
    left: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Suite:
    """The STS sets in a folder: pairs by title, the distinct texts of all sets, and a digest of the files."""

    sets: dict[str, Pairs]
    texts: list[str]
    digest: str


def read_suite(folder: Path) -> Suite:
    """Reads the seven test sets and STS-B dev (score, sentence1, sentence2, separated by tabs) from a folder."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    number: dict[str, int] = {}
    sets, digest = {}, hashlib.sha256()
    for key, title in FILES.items():
        data = (folder / f"{key}.tsv").read_bytes()
        digest.update(data)
        rows = [line.split("\t") for line in data.decode("utf-8").split("\n") if line]
        left, right = (
            np.array([number.setdefault(" ".join(row[side].split()), len(number)) for row in rows]) for side in (1, 2)
        )
        graph = coo_matrix((np.ones(len(rows)), (left, right)), shape=(len(number), len(number)))
        _, group = np.unique(connected_components(graph, directed=False)[1][left], return_inverse=True)
        sets[title] = Pairs(np.array([float(row[0]) for row in rows]), left, right, group)
    return Suite(sets, list(number), digest.hexdigest())


def spearman(values: Vector, gold: Vector) -> float:
    """Spearman's correlation x 100 of two vectors ``(n,)``."""
    from scipy.stats import rankdata

    return 100 * float(np.corrcoef(rankdata(values), rankdata(gold))[0, 1])


def score(suite: Suite, values: Mapping[str, Vector], rows: Mapping[str, npt.NDArray[np.int64]]) -> dict[str, float]:
    """Spearman's correlation x 100 of each set on the given rows (default: all), and the mean of the seven."""
    scores = {}
    for title, pairs in suite.sets.items():
        chosen = rows.get(title, slice(None))
        scores[title] = spearman(values[title][chosen], pairs.gold[chosen])
    return scores | {"mean": statistics.fmean(scores[title] for title in SEVEN)}


def unit(vectors: npt.NDArray[np.float32]) -> Vector:
    """The rows of ``(n, D)`` at length 1, in float64."""
    wide = vectors.astype(np.float64)
    normal: Vector = wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)
    return normal


def evaluate(suite: Suite, vectors: npt.NDArray[np.float32]) -> tuple[dict[str, float], dict[str, Vector]]:
    """Scores of the embeddings ``(n, D)`` of the suite's texts, and the cosines of the pairs of each set.

    Alignment (pairs with a gold score above 4) and uniformity (distinct sentences) are those of STS-B dev, as defined
    in ``cse.evaluation.geometry``.
    """
    points = unit(vectors)
    values = {title: (points[pairs.left] * points[pairs.right]).sum(1) for title, pairs in suite.sets.items()}
    dev = suite.sets["STS-B dev"]
    texts = points[np.unique(np.concatenate([dev.left, dev.right]))]
    kernel = np.exp(-2 * np.maximum(2 - 2 * texts @ texts.T, 0))
    np.fill_diagonal(kernel, 0)
    geometry = {
        "alignment": float((2 - 2 * values["STS-B dev"][dev.gold > 4]).mean()),
        "uniformity": float(np.log(kernel.sum() / (len(texts) * (len(texts) - 1)))),
    }
    return score(suite, values, {}) | geometry, values


def resample(suite: Suite, values: Mapping[str, Vector], draws: int = RESAMPLES) -> dict[str, list[float]]:
    """Scores of bootstrap resamples of the pairs: ``draws`` values of the mean of the seven, of STS-B and of STS-B dev.

    Groups of pairs are drawn with replacement, and ranks are recomputed. The draws depend on the suite alone.
    """
    generator = np.random.default_rng(0)
    result: dict[str, list[float]] = {"mean": [], "STS-B": [], "STS-B dev": []}
    for _ in range(draws):
        rows = {}
        for title, pairs in suite.sets.items():
            groups = int(pairs.group.max()) + 1
            times = np.bincount(generator.integers(0, groups, groups), minlength=groups)[pairs.group]
            rows[title] = np.repeat(np.arange(len(times)), times)
        scores = score(suite, values, rows)
        for title, resampled in result.items():
            resampled.append(scores[title])
    return result


def interval(after: Sequence[Sequence[float]], before: Sequence[Sequence[float]], seed: int = 0) -> tuple[float, float]:
    """95 % interval of the mean difference between two sides, over pairs and seeds, by a hierarchical bootstrap.

    Args:
        after: For each training seed, the resampled scores of one side.
        before: The same of the other side, with the same draws of pairs and the same seeds in the same order.
        seed: Seed of the draws of training seeds.

    For each draw of pairs, training seeds are drawn with replacement 20 times, and their differences are averaged. The
    interval holds the middle 95 % of all these averages. Since a bootstrap of n values has too small a variance, the
    deviations of the seeds from their mean are multiplied by sqrt(n / (n - 1)) first. With one training seed, the
    interval is over pairs only.
    """
    differences = np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64)
    n, draws = differences.shape
    if n > 1:
        mean = differences.mean(0)
        differences = mean + (differences - mean) * np.sqrt(n / (n - 1))
    chosen = np.random.default_rng(seed).integers(0, n, (20, n, draws))
    low, high = np.quantile(differences[chosen, np.arange(draws)].mean(1), [0.025, 0.975])
    return float(low), float(high)
