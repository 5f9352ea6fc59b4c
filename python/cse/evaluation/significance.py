"""Intervals for differences between two encoders on the same examples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["paired_bootstrap"]


def paired_bootstrap(
    differences: npt.NDArray[np.floating], resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Mean of paired differences with a 95 % percentile bootstrap interval.

    Args:
        differences: ``(n,)`` score of an example after, minus its score before.
        resamples: Number of bootstrap samples of n examples.
        seed: Seed of the resampling.

    Returns:
        Mean, lower and upper bound.
    """
    generator = np.random.default_rng(seed)
    n = len(differences)
    means = [float(differences[generator.integers(0, n, n)].mean()) for _ in range(resamples)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(differences.mean()), float(low), float(high)
