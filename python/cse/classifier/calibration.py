"""Confidence that holds: a temperature and a bias for each label, fitted to predictions of rows that did not teach.

The classifier weights all labels alike, so that its log-odds are those of a world in which they are equally frequent,
and its weights are shrunken, which makes them too small. Both are corrected together (bias-corrected temperature
scaling, Alexandari, Kundaje and Shrikumar, ICML 2020), by the most probable values under normal priors of standard
deviation 1: of the logarithm of the scale, around 0, and of each bias, around 0. Not a scale for each label: in trials
on two datasets, it gained nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

LOWEST = -1e4
"""Log-odds of a label that the classifier did not know: its probability is 0."""


@dataclass(frozen=True)
class Calibration:
    """Probabilities from log-odds: softmax(scale * log-odds + biases)."""

    scale: float
    """The inverse of the temperature."""
    biases: Vector
    """``(K,)``, added to the scaled log-odds of each label."""

    def __call__(self, log_odds: Vector) -> Vector:
        """Returns the probabilities of the labels, ``(n, K)``, for log-odds ``(n, K)``."""
        from scipy.special import softmax

        return np.asarray(softmax(self.scale * np.maximum(log_odds, LOWEST) + self.biases, axis=1))

    def smaller(self, factor: float) -> Calibration:
        """Returns the calibration with scale and biases times a factor, by which the most probable label of a row does
        not change. The scale alone would give the biases, the shares of the labels, more weight."""
        return Calibration(self.scale * factor, self.biases * factor)


def calibrate(log_odds: Vector, labels: Rows) -> Calibration:
    """Fits a calibration to log-odds ``(n, K)`` and the labels ``(n,)`` of the same rows; rows whose label was not
    known to the classifier, with log-odds of minus infinity, are left out."""
    from scipy.optimize import minimize
    from scipy.special import logsumexp

    rows = np.flatnonzero((labels >= 0) & np.isfinite(log_odds[np.arange(len(labels)), labels]))
    odds, own = np.maximum(log_odds[rows], LOWEST), labels[rows]
    place = np.arange(len(rows))

    def posterior(values: Vector) -> tuple[float, Vector]:
        """Returns the negative logarithm of the posterior, up to a constant, and its gradient."""
        scale, biases = np.exp(values[0]), values[1:]
        scores = scale * odds + biases
        logs = scores - logsumexp(scores, axis=1, keepdims=True)
        excess = np.exp(logs)
        excess[place, own] -= 1
        loss = values @ values / 2 - logs[place, own].sum()
        gradient = np.concatenate([[scale * (excess * odds).sum()], excess.sum(0)])
        return float(loss), gradient + values

    # The bounds of the scale, e^-3 to e^5, keep a line search from overflowing.
    bounds = [(-3.0, 5.0), *[(None, None)] * log_odds.shape[1]]
    found = minimize(posterior, np.zeros(1 + log_odds.shape[1]), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Calibration(float(np.exp(found[0])), found[1:])


def cross_calibrated(log_odds: Vector, labels: Rows, folds: Rows) -> Vector:
    """Returns probabilities ``(n, K)`` of each row by the calibration that was fitted to the other folds, ``(n,)``."""
    found = np.empty_like(log_odds)
    for fold in np.unique(folds):
        own = folds == fold
        found[own] = calibrate(log_odds[~own], labels[~own])(log_odds[own])
    return found
