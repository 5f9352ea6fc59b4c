"""Intervals and tests for differences between encoders, or training methods over several seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..identity import row_keys
from .base import Report, Sample

RESAMPLES = 2000
FEW = 20
"""Units, or rows that change, below which a bootstrap is not used."""

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Difference:
    """A difference with a 95 % interval and a two-sided p-value; these are NaN if they cannot be determined."""

    mean: float
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan


def direction(low: float, high: float) -> int:
    """Returns 1 if the interval of a difference lies above 0, -1 if it lies below 0, and 0 if it includes 0."""
    return int(low > 0) - int(high < 0)


def adjust(records: list[dict[str, Any]], level: float = 0.05) -> None:
    """Adds ``p_holm`` and ``verdict`` to the records that ``compare`` returns."""
    tested = [record for record in records if record.get("p") is not None]
    for record, p in zip(tested, holm([record["p"] for record in tested]), strict=True):
        record["p_holm"] = p
        record["verdict"] = "no difference seen" if p >= level else "better" if record["mean"] > 0 else "worse"
    for record in records:
        record.setdefault("verdict", "")


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


def score_of(values: Vector, gold: Vector | None) -> float:
    """Returns the mean of ``values`` ``(n,)``, or Spearman's correlation x 100 with the gold scores ``(n,)``."""
    if gold is None:
        return float(values.mean())
    from scipy.stats import rankdata

    if not np.ptp(values) >= 1e-9 or not np.ptp(gold) > 0:  # as in ``sts.score_vectors``
        return math.nan
    return 100 * float(np.corrcoef(rankdata(values), rankdata(gold))[0, 1])


def scores_of(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns the score of each sample by its task."""
    return {sample.task: score_of(sample.values, sample.gold) for sample in samples}


def resampled_difference(
    before: Sequence[Vector],
    after: Sequence[Vector],
    gold: Vector | None = None,
    clusters: Sequence[npt.NDArray[np.int64]] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[Difference, Vector]:
    """Returns the score of the second side minus the score of the first, tested by a paired bootstrap over examples.

    Clusters of examples are drawn with replacement, and the score (see ``score_of``) is recomputed for each resample.
    Each side has the values ``(n,)`` of one or more checkpoints, whose scores are averaged. Also returns the difference
    in each resample, ``(resamples,)``; tasks with equally many clusters get the same draws.
    """

    def difference(rows: npt.NDArray[np.int64] | slice) -> float:
        chosen = None if gold is None else gold[rows]
        sides = [float(np.mean([score_of(vector[rows], chosen) for vector in side])) for side in (before, after)]
        return sides[1] - sides[0]

    generator = np.random.default_rng(seed)
    n = len(before[0])
    units = n if clusters is None else len(clusters)

    def drawn() -> npt.NDArray[np.int64]:
        chosen = generator.integers(0, units, units)
        return chosen if clusters is None else np.concatenate([clusters[i] for i in chosen])

    values = np.array([difference(drawn()) for _ in range(resamples)])
    observed = difference(slice(None))
    if gold is None and clusters is None and n > 1:
        rows = np.mean(after, axis=0) - np.mean(before, axis=0)
        changes = np.abs(rows[rows != 0])
        # Among few units, a t-test needs changes of different sizes in most of them.
        if len(changes) < FEW and (n >= FEW or 2 * len(changes) < n or np.ptp(changes) == 0):
            largest = max(float(np.abs(vector).max()) for vector in (*before, *after))
            return few_changes(rows, largest or 1.0), values
    if units < FEW:
        groups = [np.array([row]) for row in range(n)] if clusters is None else clusters
        kept = [np.concatenate([*groups[:i], *groups[i + 1 :]]) for i in range(units)] if units > 1 else []
        return few_units(observed, [difference(rows) for rows in kept]), values
    return summarise(observed, values), values


def few_units(observed: float, without: Sequence[float]) -> Difference:
    """Returns a difference with the interval and p-value of a t-test of the jackknife's pseudo-values (Tukey 1958).
    ``without`` holds the differences without each unit. The p-value is at least 2^(1-n), as in an exact test."""
    n = len(without)
    if n < 2 or not np.isfinite([observed, *without]).all():
        return Difference(observed)
    found = t_interval([n * observed - (n - 1) * each for each in without])
    half = (found.high - found.low) / 2
    return Difference(observed, observed - half, observed + half, max(found.p, 2.0 ** (1 - n)))


def few_changes(differences: Vector, scale: float) -> Difference:
    """Returns the mean of differences ``(n,)`` of which few are not 0, with an interval and an exact p-value. As in the
    interval of Agresti and Min (2005) for paired proportions, half a row that rises by ``scale`` and half a row that
    falls by it are added, and one row that does not change."""
    from scipy.stats import norm

    n, changed = len(differences) + 2, differences[differences != 0]
    scale = float(np.abs(changed).max()) if len(changed) else scale
    mean = float(differences.sum()) / n
    half = float(norm.ppf(0.975)) * math.sqrt(((differences**2).sum() + scale**2) / n - mean**2) / math.sqrt(n)
    return Difference(float(differences.mean()), mean - half, mean + half, sign_flips(changed))


def sign_flips(differences: Vector) -> float:
    """Returns the two-sided p-value of a test that flips the signs of ``(n,)`` differences in all 2^n ways, n < 20."""
    if not len(differences):
        return 1.0
    totals = np.zeros(1)
    for each in np.abs(differences):
        totals = np.concatenate([totals + each, totals - each])
    return float((np.abs(totals) >= abs(differences.sum()) - 1e-9).mean())


def summarise(observed: float, values: Vector) -> Difference:
    """Returns the difference with the percentile interval and two-sided p-value computed from its bootstrap values. A
    resample without a value (NaN, because all its gold scores or cosines are equal) counts in both tails."""
    unknown = np.isnan(values)
    lowest, highest = np.where(unknown, -np.inf, values), np.where(unknown, np.inf, values)
    with np.errstate(invalid="ignore"):  # interpolation between infinities
        low, high = float(np.quantile(lowest, 0.025)), float(np.quantile(highest, 0.975))
    if not math.isfinite(observed + low + high):
        return Difference(observed)
    tail = min((lowest <= 0).sum(), (highest >= 0).sum())
    return Difference(observed, low, high, min(1.0, 2 * (float(tail) + 1) / (len(values) + 1)))


def t_interval(differences: Sequence[float]) -> Difference:
    """Returns the mean of paired differences over seeds, with the 95 % interval and p-value of the paired t-test."""
    from scipy.stats import t

    n = len(differences)
    mean, error = float(np.mean(differences)), float(np.std(differences, ddof=1)) / math.sqrt(n)
    if not math.isfinite(mean + error):
        return Difference(mean)
    half = float(t.ppf(0.975, n - 1)) * error
    p = 2 * float(t.sf(abs(mean) / error, n - 1)) if error > 0 else 2.0 ** (1 - n) if mean else 1.0
    return Difference(mean, mean - half, mean + half, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for several tests by Holm's step-down method, in the given order; NaN stays NaN."""
    p = np.array(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")[: np.count_nonzero(~np.isnan(p))]  # NaN is last
    p[order] = np.minimum(np.maximum.accumulate(np.arange(len(order), 0, -1) * p[order]), 1)
    return [float(each) for each in p]


def compare(before: Sequence[Report], after: Sequence[Report], seeds: bool) -> list[dict[str, Any]]:
    """Compares two sides, each with one report of the same evaluation per checkpoint, over seeds or over examples. The
    records are those of ``cse.Comparison``, without ``p_holm`` and ``verdict``, which ``adjust`` adds, and with a
    remark ``note`` if there are few units (seeds, queries or clusters of sentences)."""
    records: list[dict[str, Any]] = []
    if not before[0].samples:
        return [record for row in range(len(before[0].rows)) for record in plain_differences(before, after, row)]
    for number, sample in enumerate(before[0].samples):
        old, new = ([report.samples[number].values for report in side] for side in (before, after))
        scores = [[score_of(values, sample.gold) for values in side] for side in (old, new)]
        if seeds:
            difference = t_interval([b - a for a, b in zip(*scores, strict=True)])
            units, clusters = len(old), None
        else:
            clusters = sentence_clusters(*sample.sentences) if sample.sentences else None
            difference, _ = resampled_difference(old, new, sample.gold, clusters)
            units = len(clusters) if clusters is not None else len(sample.values)
        a, b = (sum(side) / len(side) for side in scores)
        record = {"task": sample.task, "examples": len(sample.values), "a": a, "b": b, "mean": difference.mean}
        if units < FEW:
            name = "seeds" if seeds else "clusters" if clusters is not None else "queries"
            least = "" if seeds else f", p is at least {2.0 ** (1 - units):.2g}"
            few = f"{units} {name}: t-test{least}"
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
