"""Intervals and tests for differences between encoders, or training methods over several seeds; and the word for them.

The interval and the p-value of a difference come from one of four methods:

- Examples, of which 20 or more change: a paired bootstrap. The percentile interval is widened as for Student's t
  with as many degrees of freedom as examples change, minus 1, because it is too narrow for few of them (Hesterberg
  2015, section 5.3); or with fewer, if few large changes determine the mean (see ``effective``).
- Examples, of which fewer than 20 change: the interval of Agresti and Min, and an exact test; see ``few_changes``.
- Fewer than 20 examples, most of which change by different amounts, or fewer than 20 clusters: a t-test of the
  jackknife; see ``few_units``.
- Seeds: a paired t-test.

``word`` decides what is better, wherever two encoders or methods are compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..identity import row_keys
from ..ties import FLOAT64, at_least, comparable, differences
from .base import Report, Sample

RESAMPLES = 2000
FEW = 20
"""Units, or rows that change, below which a bootstrap is not used."""

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """A difference with a 95 % interval and a two-sided p-value; these are NaN if they cannot be determined."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan


LEVEL = 0.05
ALL_ROWS = "accuracy of all rows"
BETTER, WORSE, CANNOT_TELL = "better", "worse", "cannot tell"


def direction(low: float, high: float) -> int:
    """Returns 1 if the interval of a difference lies above 0, -1 if it lies below 0, and 0 if it includes 0."""
    return int(low > 0) - int(high < 0)


def word(low: float, high: float, p: float) -> str:
    """Returns what a difference means: ``BETTER`` or ``WORSE`` if its 95 % interval excludes 0 and its p-value,
    adjusted if there are several tests, is below ``LEVEL``; else, and without them (NaN), ``CANNOT_TELL``."""
    return {1: BETTER, -1: WORSE, 0: CANNOT_TELL}[direction(low, high) if p < LEVEL else 0]


def adjust(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the records of ``compare`` for tasks that are tested together, with the adjusted p-value ``p_holm`` and
    the ``word`` as ``verdict``, which is "" for metrics without examples."""
    tested = [record for record in records if "p" in record]
    for record, p in zip(tested, holm([record["p"] for record in tested]), strict=True):
        record |= {"p_holm": p, "verdict": word(record["low"], record["high"], p)}
    for record in records:
        record.setdefault("verdict", "" if record["examples"] is None else CANNOT_TELL)
    return records


def sentence_clusters(left: Sequence[str], right: Sequence[str]) -> list[npt.NDArray[np.int64]]:
    """Groups pairs that share a sentence, directly or through other pairs; returns the pair indices of each group.

    Sentences are compared by their row keys (``cse.identity``).
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    known, number = np.unique(row_keys([*left, *right]), return_inverse=True)
    edges = number[: len(left)], number[len(left) :]
    graph = coo_matrix((np.ones(len(left)), edges), shape=(len(known), len(known)))
    component = connected_components(graph, directed=False)[1][edges[0]]
    order = np.argsort(component, kind="stable")
    return list(np.split(order, np.flatnonzero(np.diff(component[order])) + 1))


def score_of(values: Vector, gold: Vector | None, classes: Rows | None = None) -> float:
    """Returns the mean of ``values`` ``(n,)``, the mean of their means by class, or Spearman's correlation x 100 with
    the gold scores ``(n,)``."""
    return float(resampled_scores(values * weights_of(classes, len(values)), gold, np.ones((1, len(values))))[0])


def resampled_scores(values: Vector, gold: Vector | None, times: Vector) -> Vector:
    """Returns the score of ``score_of`` if example i occurs ``times[r, i]`` times, for each r: ``(r,)``."""
    total = times.sum(1)
    if gold is None:
        return np.asarray(times @ values / total)
    one, other = (_ranks(each, times) - (total[:, None] + 1) / 2 for each in (comparable(values), gold))
    with np.errstate(divide="ignore", invalid="ignore"):  # NaN if all values, or all gold scores, are equal
        spread = (times * one**2).sum(1) * (times * other**2).sum(1)
        return np.asarray(100 * (times * one * other).sum(1) / np.sqrt(spread))


def _ranks(values: Vector, times: Vector) -> Vector:
    """Returns the ranks of values ``(n,)``, of which each occurs ``times`` ``(r, n)``; equal ones share their mean."""
    order = np.argsort(values, kind="stable")
    distinct, starts = np.unique(values[order], return_index=True)
    counts, place = np.add.reduceat(times[:, order], starts, axis=1), np.searchsorted(distinct, values)
    return np.asarray((np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place])


def scores_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the score of each sample by its task."""
    return {sample.task: score_of(sample.values, sample.gold, sample.classes) for sample in samples}


def baselines(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the score of each sample of what needs no encoder and, of a mean over classes, also the mean over all
    rows, which is the accuracy."""
    found: dict[str, float] = {}
    for sample in samples:
        found |= scores_of([sample])
        if sample.classes is not None:
            found[f"{sample.task}, {ALL_ROWS}"] = float(sample.values.mean())
    return found


def paired_difference(
    before: Sequence[Vector],
    after: Sequence[Vector],
    gold: Vector | None = None,
    clusters: Sequence[Rows] | None = None,
    classes: Rows | None = None,
    resamples: int = RESAMPLES,
) -> Difference:
    """Returns the score of the second side minus the score of the first, with the interval and p-value of the module.

    Args:
        before: The values ``(n,)`` of one or more checkpoints, whose scores are averaged.
        after: The same for the second side.
        gold: See ``score_of``.
        clusters: Examples by cluster, which are drawn together. None: each example alone.
        classes: ``(n,)`` the class of each example; the score is then the mean over the classes of their means, and
            examples are drawn within classes. Without ``gold`` and ``clusters`` only.
        resamples: Number of resamples.
    """
    n = len(before[0])
    weights = weights_of(classes, n)
    rows = differences(np.mean(before, axis=0), np.mean(after, axis=0)) * weights
    if gold is None and clusters is None:
        changes = np.abs(rows[rows != 0])
        # Among few examples, a t-test needs changes of different sizes in most of them.
        if n > 1 and len(changes) < FEW and (n >= FEW or 2 * len(changes) < n or np.ptp(changes) == 0):
            largest = max(float(np.abs(vector).max()) for vector in (*before, *after))
            return few_changes(rows, (largest or 1.0) * float(weights.max()))
        if n < FEW:
            return few_units(float(rows.mean()), (rows.sum() - rows) / max(n - 1, 1) if n > 1 else ())
        drawn = resampled_means(rows, strata_of(classes, n), resamples)
        return summarise(float(rows.mean()), drawn, effective(rows))

    groups = [np.array([row]) for row in range(n)] if clusters is None else clusters
    units, group_of = len(groups), np.empty(n, dtype=np.int64)
    group_of[np.concatenate(groups)] = np.repeat(np.arange(units), [len(group) for group in groups])

    def difference(times: Vector) -> Vector:
        """Returns the difference for each row of ``(r, units)`` numbers of draws."""
        if gold is None:
            return resampled_scores(rows, None, times[:, group_of])
        sides = ([resampled_scores(vector, gold, times[:, group_of]) for vector in side] for side in (before, after))
        old, new = (np.mean(side, axis=0) for side in sides)
        return np.asarray(new - old)

    observed = float(difference(np.ones((1, units)))[0])
    if units < FEW:
        return few_units(observed, difference(1.0 - np.eye(units)) if units > 1 else ())
    drawn = np.concatenate([difference(times) for times in _draws(units, resamples, n)])
    return summarise(
        observed, drawn, effective(np.bincount(group_of, rows).astype(np.float64)) if gold is None else units
    )


def weights_of(classes: Rows | None, n: int) -> Vector:
    """Returns the weights of n examples with which the mean is the mean over the means of the classes, ``(n,)``."""
    if classes is None:
        return np.ones(n)
    _, place, counts = np.unique(classes, return_inverse=True, return_counts=True)
    return np.asarray(n / (len(counts) * counts[place]))


def strata_of(classes: Rows | None, n: int) -> list[Rows]:
    """Returns the examples of each class."""
    return [np.arange(n)] if classes is None else [np.flatnonzero(classes == each) for each in np.unique(classes)]


def resampled_means(rows: Vector, strata: Sequence[Rows], resamples: int) -> Vector:
    """Returns the means of ``(n,)`` differences in resamples that draw as many from each stratum as it has."""
    generator, totals = np.random.default_rng(0), np.zeros(resamples)
    for stratum in strata:
        values, start = rows[stratum], 0
        for size in _blocks(resamples, len(stratum)):
            totals[start : start + size] += values[generator.integers(0, len(values), (size, len(values)))].sum(1)
            start += size
    return totals / len(rows)


def _blocks(resamples: int, n: int) -> list[int]:
    """Returns the numbers of resamples of n examples that are computed together, so that they need little memory."""
    size = max(1, 2_000_000 // n)
    return [min(size, resamples - start) for start in range(0, resamples, size)]


def _draws(units: int, resamples: int, n: int) -> Iterator[Vector]:
    """Yields how often each unit is drawn in some resamples, ``(r, units)``; tasks with equally many get the same."""
    generator = np.random.default_rng(0)
    for size in _blocks(resamples, n):
        drawn = generator.integers(0, units, (size, units)) + units * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * units).reshape(size, units).astype(np.float64)


def effective(changes: Vector) -> float:
    """Returns the effective number of differences ``(n,)`` by which their mean is tested, at least 2: the number of
    those that are not 0, or 3 (sum of d^2)^2 / sum of d^4 if this is smaller. The two are equal for a normal
    distribution; with a longer tail, few large differences determine the mean."""
    squares = changes[changes != 0] ** 2
    return max(2.0, min(len(squares), 3 * float(squares.sum() ** 2 / (squares**2).sum()))) if len(squares) else 2.0


def few_units(observed: float, without: Sequence[float] | Vector) -> Difference:
    """Returns a difference with the interval and p-value of a t-test of the jackknife's pseudo-values (Tukey 1958).
    ``without`` holds the differences without each unit. The p-value is at least 2^(1-n), as in an exact test."""
    n = len(without)
    if n < 2 or not np.isfinite([observed, *without]).all():
        return Difference(observed)
    found = t_interval([n * observed - (n - 1) * each for each in without])
    half = (found.high - found.low) / 2
    return Difference(observed, observed - half, observed + half, max(found.p, 2.0 ** (1 - n)))


def few_changes(rows: Vector, scale: float) -> Difference:
    """Returns the mean of differences ``(n,)`` of which few are not 0, with an interval and an exact p-value. As in the
    interval of Agresti and Min (2005) for paired proportions, half a row that rises by ``scale`` and half a row that
    falls by it are added, and one row that does not change."""
    from scipy.stats import norm

    n, changed = len(rows) + 2, rows[rows != 0]
    scale = float(np.abs(changed).max()) if len(changed) else scale
    mean = float(rows.sum()) / n
    half = float(norm.ppf(0.975)) * math.sqrt(((rows**2).sum() + scale**2) / n - mean**2) / math.sqrt(n)
    return Difference(float(rows.mean()), mean - half, mean + half, sign_flips(changed))


def sign_flips(changes: Vector) -> float:
    """Returns the two-sided p-value of a test that flips the signs of ``(n,)`` differences in all 2^n ways, n < 20."""
    if not len(changes):
        return 1.0
    totals = np.zeros(1)
    for each in np.abs(changes):
        totals = np.concatenate([totals + each, totals - each])
    return float(at_least(np.abs(totals), abs(changes.sum()), FLOAT64 * np.abs(changes).sum()).mean())


def summarise(observed: float, values: Vector, units: float = math.inf) -> Difference:
    """Returns the difference with the interval and two-sided p-value computed from its bootstrap values. A resample
    without a value (NaN, because all its gold scores or cosines are equal) counts in both tails. A bootstrap of few
    ``units`` has too small a standard error, by the factor sqrt(1 - 1/units), and normal quantiles, not Student's;
    both are corrected. With infinitely many, the interval is between the 2.5th and 97.5th percentiles."""
    from scipy.stats import norm, t

    unknown = np.isnan(values)
    lowest, highest = np.where(unknown, -np.inf, values), np.where(unknown, np.inf, values)
    narrow = math.sqrt(1 - 1 / units)
    wider = float(t.ppf(0.975, units - 1) / norm.ppf(0.975)) / narrow
    with np.errstate(invalid="ignore"):  # interpolation between infinities
        ends = np.quantile(lowest, 0.025), np.quantile(highest, 0.975)
        low, high = (observed + wider * (float(end) - observed) for end in ends)
    if not math.isfinite(observed + low + high):
        return Difference(observed)
    tail = (min((lowest <= 0).sum(), (highest >= 0).sum()) + 1) / (len(values) + 1)
    return Difference(observed, low, high, min(1.0, 2 * float(t.cdf(norm.ppf(min(tail, 0.5)) * narrow, units - 1))))


def t_interval(changes: Sequence[float] | Vector) -> Difference:
    """Returns the mean of paired differences over seeds, with the 95 % interval and p-value of the paired t-test.
    Equal differences, which have no spread to test by, are treated as by ``few_changes``."""
    from scipy.stats import t

    n, mean = len(changes), float(np.mean(changes))
    if not math.isfinite(mean):
        return Difference(mean)
    if np.ptp(changes) == 0:
        return few_changes(np.asarray(changes, dtype=np.float64), 0.0)
    error = float(np.std(changes, ddof=1)) / math.sqrt(n)
    half = float(t.ppf(0.975, n - 1)) * error
    return Difference(mean, mean - half, mean + half, 2 * float(t.sf(abs(mean) / error, n - 1)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for several tests by Holm's step-down method, in the given order; NaN stays NaN."""
    p = np.array(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN is last
    p[order] = np.minimum(np.maximum.accumulate(np.arange(len(order), 0, -1) * p[order]), 1)
    return [float(each) for each in p]


def compare(before: Sequence[Report], after: Sequence[Report], seeds: bool) -> list[dict[str, Any]]:
    """Compares two sides, each with one report of the same evaluation per checkpoint, over seeds or over examples. The
    records are as in ``cse.Comparison``, without ``p_holm`` and ``verdict``, which ``adjust`` adds, and with a
    remark ``note`` if there are few units (seeds, examples or clusters of sentences)."""
    records: list[dict[str, Any]] = []
    if not before[0].samples:
        return [record for row in range(len(before[0].rows)) for record in plain_differences(before, after, row)]
    for number, sample in enumerate(before[0].samples):
        old, new = ([report.samples[number].values for report in side] for side in (before, after))
        scores = [[score_of(values, sample.gold, sample.classes) for values in side] for side in (old, new)]
        if seeds:
            difference = t_interval(differences(*map(np.array, scores)))
            units, clusters = len(old), None
        else:
            clusters = sentence_clusters(*sample.sentences) if sample.sentences else None
            difference = paired_difference(old, new, sample.gold, clusters, sample.classes)
            units = len(clusters) if clusters is not None else len(sample.values)
        a, b = (sum(side) / len(side) for side in scores)
        record = {"task": sample.task, "examples": len(sample.values), "a": a, "b": b, "mean": difference.mean}
        if sample.classes is not None:
            record["by_rows"] = [float(np.mean(side)) for side in (old, new)]
        if units < FEW:
            name = "seeds" if seeds else "clusters" if clusters is not None else sample.unit
            how = "t-test" if seeds else f"few, so that p is at least {2.0 ** (1 - units):.2g}"
            few = f"{units} {name}: {how}"
            record["note"] = few if units > 1 else f"1 of the {name}: no interval and no p"
        records.append(record if math.isnan(difference.p) else {**record, **asdict(difference)})
    return records


def plain_differences(before: Sequence[Report], after: Sequence[Report], row: int) -> list[dict[str, Any]]:
    """Returns one record per metric in row ``row`` of the reports: the means over checkpoints and their difference."""
    first = before[0].rows[row]
    records = []
    for name, value in first.items():
        if isinstance(value, float):
            a, b = (sum(report.rows[row][name] for report in side) / len(side) for side in (before, after))
            size = f" ({first['dims']} dimensions)" if "dims" in first else ""
            records.append({"task": f"{first['task']}{size}: {name}", "examples": None, "a": a, "b": b, "mean": b - a})
    return records


def power(queries: int, effect: float, level: float = 0.05) -> float:
    """Returns the power of the two-sided paired t-test: the probability that it finds a difference."""
    from scipy.stats import nct, t

    limit = t.ppf(1 - level / 2, queries - 1)
    # SciPy returns NaN for much larger values; at 30, the power is above 0.98 even with two queries.
    shift = min(abs(effect) * math.sqrt(queries), 30.0)
    return float(nct.sf(limit, queries - 1, shift) + nct.cdf(-limit, queries - 1, shift))


def queries_needed(difference: float, spread: float, probability: float = 0.8, level: float = 0.05) -> int:
    """Returns the number of queries with which a paired t-test finds a difference (Webber, Moffat and Zobel 2008).
    ``spread`` is the standard deviation of the differences of queries."""
    from scipy.stats import norm

    effect = abs(difference) / spread
    n = max(2, math.floor(((norm.ppf(1 - level / 2) + norm.ppf(probability)) / effect) ** 2))
    while power(n, effect, level) < probability:
        n += 1
    return n
