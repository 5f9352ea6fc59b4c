"""Whether labelled rows look as if they were drawn at random from the rows to predict; else, they promise nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..evaluation.geometry import unit
from ..evaluation.labels import regression
from .promise import Interval, Z

Vector = npt.NDArray[np.floating]
Rows = npt.NDArray[np.int64]

FOLDS = 5
OTHERS = 1000
"""Most rows that are compared with the labelled ones."""
TOLD_APART = 55.0
"""Labelled rows were not drawn at random if their AUC is above this, in percent, by its whole interval."""
P_VALUE, SHIFT = 0.001, 5.0
"""Or if the shares of the predicted labels differ with a smaller p-value, and by as many points."""


@dataclass(frozen=True)
class Drawn:
    """A comparison of labelled rows with others."""

    auc: Interval
    """How often a labelled row scores higher than another row by a classifier that tells the two kinds apart, in
    percent; 50 for rows that were drawn at random."""
    p_value: float
    """Of the chi-squared test that labels are predicted in the same shares."""
    shift: float
    """The largest difference of these shares, in points."""
    label: Any
    """The label with this difference."""

    @property
    def at_random(self) -> bool:
        """``benches/promise.py --drawn`` measures how often it is true of labels that were drawn at random, and of
        others."""
        return self.auc.low <= TOLD_APART and not (self.p_value < P_VALUE and self.shift > SHIFT)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "auc": self.auc._asdict(), "at_random": self.at_random}

    def describe(self) -> str:
        """Returns the comparison as a sentence."""
        area, low, high = (value / 100 for value in self.auc)
        about = f"AUC {area:.2f} [{low:.2f}, {high:.2f}]; 0.5 if drawn at random"
        if self.at_random:
            return f"the labelled rows look as if they were drawn at random from these rows ({about})"
        why = f"a classifier tells them from the other rows: {about}"
        if self.auc.low <= TOLD_APART:
            why = f"{self.label} is predicted for {self.shift:.0f} points more or fewer of them than of the other rows"
        return f"these labels were not drawn at random from these rows ({why})"


def told_apart(labelled: Vector, others: Vector) -> Interval:
    """Returns the AUC of the regression of the verdict, on unit vectors, that tells labelled rows ``(n, D)`` from
    others ``(m, D)``, in percent, each row by the classifier of the other folds. The interval is that of Hanley and
    McNeil (Radiology 1982)."""
    from sklearn.metrics import roc_auc_score

    rows = unit(np.concatenate([labelled, others]))
    kind = np.repeat([1, 0], [len(labelled), len(others)])
    fold = np.concatenate([np.arange(len(labelled)), np.arange(len(others))]) % FOLDS
    scores = np.zeros(len(kind))
    for number in range(FOLDS):
        own = fold == number
        scores[own] = regression(rows[~own], kind[~own]).decision_function(rows[own])
    n, m = len(labelled), len(others)
    area = float(roc_auc_score(kind, scores))
    one, other = area / (2 - area), 2 * area * area / (1 + area)
    variance = (area * (1 - area) + (n - 1) * (one - area**2) + (m - 1) * (other - area**2)) / (n * m)
    half = Z * float(np.sqrt(variance))
    return Interval(100 * area, 100 * max(area - half, 0.0), 100 * min(area + half, 1.0))


def compare(labelled: Vector, others: Vector, predicted: Rows, of_others: Rows, classes: list[Any]) -> Drawn:
    """Compares labelled rows with others by their vectors, and by the labels that are predicted for both: for labelled
    rows, by what did not know their labels."""
    from scipy.stats import chi2_contingency

    counts = np.array([np.bincount(each, minlength=len(classes)) for each in (predicted, of_others)])
    shares = 100 * counts / counts.sum(1, keepdims=True)
    shift = np.abs(shares[0] - shares[1])
    used = counts[:, counts.sum(0) > 0]
    p_value = float(chi2_contingency(used).pvalue) if used.shape[1] > 1 else 1.0
    label = classes[int(shift.argmax())]
    return Drawn(told_apart(labelled, others), p_value, float(shift.max()), label)
