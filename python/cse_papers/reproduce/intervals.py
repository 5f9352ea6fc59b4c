"""Intervals over pairs and seeds, from the resampled scores that are stored with each run.

Every run is resampled with the same draws of pairs (or of queries). Any two runs can be compared later by their stored
scores alone: the difference of the scores of one draw is a paired resample.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cse.evaluation.base import Pairs
from cse.evaluation.significance import resampled_scores
from cse.evaluation.sts import SEVEN

Vector = npt.NDArray[np.float64]
RESAMPLES = 1000
TITLES = [title for title, _ in SEVEN.values()]
BLOCK = 100
"""Resamples that are computed together."""
KEPT = ("mean", "STS-B", "STS-B dev")
"""Scores whose resampled values are stored; ``mean`` is that of the seven test sets."""


def groups_of(sets: Mapping[str, Pairs]) -> dict[str, npt.NDArray[np.int64]]:
    """Returns the number ``(n,)`` of the group of each pair, by set: pairs that share a sentence form a group. The
    numbers must not change, because stored runs were resampled by them."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    number: dict[str, int] = {}
    for pairs in sets.values():
        for left, right in zip(pairs.left, pairs.right, strict=True):
            number.setdefault(left, len(number))
            number.setdefault(right, len(number))
    groups = {}
    for title, pairs in sets.items():
        edges = [np.array([number[text] for text in side]) for side in (pairs.left, pairs.right)]
        graph = coo_matrix((np.ones(len(edges[0])), (edges[0], edges[1])), shape=(len(number), len(number)))
        components = connected_components(graph, directed=False)[1]
        groups[title] = np.unique(components[edges[0]], return_inverse=True)[1]
    return groups


def resampled(
    sets: Mapping[str, Pairs], cosines: Mapping[str, Vector], count: int = RESAMPLES
) -> dict[str, list[int | None]]:
    """Returns Spearman's correlation in hundredths of a point on resamples of the pairs, for each of ``KEPT``."""
    generator, groups = np.random.default_rng(0), groups_of(sets)
    sizes = {title: int(each.max()) + 1 for title, each in groups.items()}
    drawn: dict[str, list[npt.NDArray[np.int16]]] = {title: [] for title in sets}  # how often each group, by draw
    for _ in range(count):
        for title, size in sizes.items():
            drawn[title].append(np.bincount(generator.integers(0, size, size), minlength=size).astype(np.int16))
    scores = {}
    for title, pairs in sets.items():
        blocks = (np.stack(drawn[title][start : start + BLOCK]) for start in range(0, count, BLOCK))
        times = (block[:, groups[title]].astype(np.float64) for block in blocks)
        scores[title] = np.concatenate([resampled_scores(cosines[title], pairs.gold, each) for each in times])
    scores["mean"] = np.mean([scores[title] for title in TITLES], axis=0)
    kept = {title: np.round(100 * scores[title]).tolist() for title in KEPT}
    return {title: [None if math.isnan(each) else int(each) for each in values] for title, values in kept.items()}


def spread(values: Vector) -> Vector:
    """Returns values ``(n, draws)`` whose deviations from the mean over n seeds are sqrt(n / (n - 1)) times as large. A
    bootstrap of n seeds has too small a variance otherwise."""
    n = len(values)
    if n == 1:
        return values
    mean = values.mean(0)
    wider: Vector = mean + (values - mean) * np.sqrt(n / (n - 1))
    return wider


def interval(differences: npt.ArrayLike, seed: int = 0) -> tuple[float, float, float]:
    """Returns a 95 % interval over pairs and seeds, and a two-sided p-value, by a hierarchical bootstrap of differences
    ``(seeds, draws)``. For each draw of pairs, seeds are drawn with replacement 20 times, and their differences are
    averaged. With one seed, both are over pairs only."""
    wider = spread(np.asarray(differences, dtype=np.float64))
    n, draws = wider.shape
    chosen = np.random.default_rng(seed).integers(0, n, (20, n, draws))
    means = wider[chosen, np.arange(draws)].mean(1)
    low, high = np.quantile(means, [0.025, 0.975])
    p = 2 * min(np.mean(means <= 0), np.mean(means >= 0))
    return float(low), float(high), float(min(max(p, 2 / means.size), 1))


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Returns the 95 % interval and the p-value of the difference of the means of two samples (the first minus the
    second) by Welch's t-test; NaN if a sample has fewer than two values, or if no value differs in either."""
    from scipy.stats import ttest_ind

    if min(len(one), len(other)) < 2 or np.ptp(one) == np.ptp(other) == 0:
        return math.nan, math.nan, math.nan
    found = ttest_ind(one, other, equal_var=False)
    low, high = found.confidence_interval(0.95)
    return float(low), float(high), float(found.pvalue)


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Returns Spearman's correlation of four or more pairs of values, and its 95 % interval (Bonett and Wright, 2000,
    "Sample size requirements for estimating Pearson, Kendall and Spearman correlations", equation 3)."""
    from scipy.stats import spearmanr

    rho = float(spearmanr(one, other).statistic)
    half = 1.96 * math.sqrt((1 + rho**2 / 2) / (len(one) - 3))
    middle = math.atanh(min(max(rho, -1 + 1e-12), 1 - 1e-12))  # finite, also if the ranks are equal
    return rho, math.tanh(middle - half), math.tanh(middle + half)


def mean_interval(changes: Sequence[Vector], count: int = 2000) -> str:
    """Returns the mean over collections of changes ``(seeds, queries)``, with its 95 % interval, as text."""
    means = []
    for number, change in enumerate(changes):
        generator = np.random.default_rng(number)
        seeds, queries = change.shape
        chosen = spread(change[:, generator.integers(0, queries, (count, queries))].mean(-1))
        means.append(chosen[generator.integers(0, seeds, (seeds, count)), np.arange(count)].mean(0))
    low, high = np.quantile(np.mean(means, axis=0), [0.025, 0.975])
    return f"{np.mean([change.mean() for change in changes]):+.2f} [{low:+.2f}, {high:+.2f}]"
