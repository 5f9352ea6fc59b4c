"""What labelled rows promise about the others: accuracy, mean recall, and accuracy above a confidence, with intervals.

It is counted on rows whose labels were known to neither the encoder, nor the classifier, nor the calibration that
predicted them. It holds for rows of the same kind: if the labelled rows were drawn at random from all (``drawn``).

An interval is Wilson's (JASA 1927) for ``rows / DESIGN`` rows, with z = 1.96. Predictions of folds share most of their
labels, so that the mean squared error of their accuracy is larger than p (1 - p) / rows: 1.0 to 1.5 times with 50 and
200 labels on eight datasets, of which 1.5 is taken. Nadeau and Bengio (Machine Learning 2003) give 2.1 for ten folds,
with which the intervals of eight datasets held the truth in 98 % of the draws; nested cross-validation (Bates, Hastie
and Tibshirani, JASA 2023) would need an encoder for each pair of folds. ``benches/promise.py`` measures the coverage.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

DESIGN = 1.5
"""The variance of the accuracy of cross-fitted predictions, as a multiple of that of independent ones."""
Z = 1.959964
THRESHOLDS = (0.5, 0.8, 0.9, 0.95)
LEAST = 5
"""Fewest rows above a confidence of which an accuracy is named."""


class Interval(NamedTuple):
    """A share in percent, with its interval of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.0f}, {self.high:.0f}]"


def wilson(right: float, count: int, design: float = DESIGN) -> Interval:
    """Returns the share of ``right`` among ``count`` rows, which must be at least 1."""
    share, n = float(right) / count, count / design
    centre = (share + Z * Z / 2 / n) / (1 + Z * Z / n)
    half = Z * math.sqrt(share * (1 - share) / n + Z * Z / 4 / n / n) / (1 + Z * Z / n)
    return Interval(100 * share, 100 * max(centre - half, 0.0), 100 * min(centre + half, 1.0))


@dataclass(frozen=True)
class Promise:
    """Predictions of labelled rows by what did not know their labels."""

    classes: list[Any]
    """The labels that can be predicted."""
    truth: Rows
    """``(n,)`` position in ``classes`` of the label of each row; -1: no other text has it, so that it cannot be
    predicted."""
    predicted: Rows
    """``(n,)`` position of the predicted label."""
    confidence: Vector
    """``(n,)`` probability that it is right, by a calibration that did not know the row."""
    how: str
    """How the rows were predicted, as text."""
    design: float = DESIGN
    """See ``DESIGN``; 1 for rows that were held out from one encoder and one classifier."""

    @property
    def right(self) -> npt.NDArray[np.bool_]:
        """Whether the label of each row was predicted, ``(n,)``."""
        return np.asarray(self.truth == self.predicted)

    @property
    def accuracy(self) -> Interval:
        """The share of the rows whose label was predicted."""
        return wilson(self.right.sum(), len(self.truth), self.design)

    @property
    def recall(self) -> Interval:
        """The mean over the labels of the share of their rows that are found. Its variance is the sum of those of the
        shares, of which each counts a right and a wrong row more, so that it is not 0."""
        rows, found = self.counts()
        kept = rows > 0
        mean = 100 * float((found[kept] / rows[kept]).mean())
        share = (found[kept] + 1) / (rows[kept] + 2)
        half = 100 * Z * float(np.sqrt((share * (1 - share) / rows[kept]).sum() * self.design)) / int(kept.sum())
        return Interval(mean, max(mean - half, 0.0), min(mean + half, 100.0))

    def counts(self) -> tuple[Rows, Rows]:
        """Returns the number of rows of each label, and of those of them that are found, ``(K,)`` each."""
        most = len(self.classes)
        known = self.truth[self.truth >= 0]
        return np.bincount(known, minlength=most), np.bincount(self.truth[self.right], minlength=most)

    def by_label(self) -> list[dict[str, Any]]:
        """Returns rows, precision and recall of each label, with intervals; None where there are no rows."""
        rows, found = self.counts()
        named = np.bincount(self.predicted, minlength=len(self.classes))
        records = []
        for place, label in enumerate(self.classes):
            shares = {
                name: wilson(found[place], int(count), self.design)._asdict() if count else None
                for name, count in (("precision", named[place]), ("recall", rows[place]))
            }
            records.append({"label": label, "rows": int(rows[place]), "predicted": int(named[place]), **shares})
        return records

    def above(self, threshold: float) -> tuple[int, Interval | None]:
        """Returns how many rows have this confidence or more, and their accuracy; None of fewer than ``LEAST``."""
        chosen = self.confidence >= threshold
        count = int(chosen.sum())
        return count, wilson(self.right[chosen].sum(), count, self.design) if count >= LEAST else None

    def confusion(self) -> Rows:
        """Returns the number of rows by true label (the last line: labels that cannot be predicted) and predicted
        label, ``(K + 1, K)``."""
        table = np.zeros((len(self.classes) + 1, len(self.classes)), dtype=np.int64)
        np.add.at(table, (self.truth, self.predicted), 1)
        return table

    def curve(self) -> tuple[Vector, Vector]:
        """Returns, for each row as a threshold, the share of rows with its confidence or more, and their accuracy."""
        order = np.argsort(-self.confidence, kind="stable")
        number = np.arange(1, len(order) + 1)
        last = np.append(np.diff(self.confidence[order]) != 0, True)  # rows of equal confidence are taken together
        return (number / len(order))[last], (np.cumsum(self.right[order]) / number)[last]

    def reliability(self) -> list[dict[str, float]]:
        """Returns, for each tenth of confidence that has rows, their number, mean confidence and accuracy."""
        tenth = np.minimum((10 * self.confidence).astype(int), 9)
        return [
            {
                "rows": int(own.sum()),
                "confidence": 100 * float(self.confidence[own].mean()),
                "accuracy": 100 * float(self.right[own].mean()),
            }
            for own in (tenth == place for place in range(10))
            if own.any()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Returns what is promised, as a dict that can be serialised to JSON; shares are in percent."""
        thresholds = []
        for threshold in THRESHOLDS:
            count, share = self.above(threshold)
            thresholds.append(
                {"confidence": threshold, "rows": count, "accuracy": None if share is None else share._asdict()}
            )
        return {
            "rows": len(self.truth),
            "how": self.how,
            "accuracy": self.accuracy._asdict(),
            "mean_recall": self.recall._asdict(),
            "labels": self.by_label(),
            "thresholds": thresholds,
        }
