"""A logistic regression on the vectors of labelled texts, its calibration, and what it promises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..encoder.taught import Taught
from ..evaluation.base import FEWEST
from ..evaluation.geometry import unit
from ..evaluation.labels import MOST_OTHERS, regression
from .calibration import Calibration, calibrate, cross_calibrated
from .labelled import Labelled
from .promise import DESIGN, Promise

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

HOW = {
    "classifiers": "{} folds; the classifier of the others predicts each",
    "encoders": "{} folds; an encoder and a classifier that learned the labels of the others predict each",
    "held out": "held out from the encoder and the classifier",
}


@dataclass(frozen=True)
class Linear:
    """The log-odds of labels, linear in a vector of unit length."""

    weights: Vector
    """``(K, D)``."""
    intercepts: Vector
    """``(K,)``."""

    @classmethod
    def fit(cls, vectors: npt.NDArray[np.floating], labels: Rows, count: int) -> Linear:
        """Fits the classifier of the verdict (``cse.evaluation.labels.predict``) to vectors ``(n, D)``. A label that
        none of the n rows has gets log-odds of minus infinity."""
        weights = np.zeros((count, vectors.shape[1]))
        intercepts = np.full(count, -np.inf)
        present = np.unique(labels)
        if len(present) < 2:
            intercepts[present] = 0
            return cls(weights, intercepts)
        found = regression(unit(vectors), labels)
        if len(present) == 2:  # one row, of the log-odds of the second label against the first
            weights[present[1]], intercepts[present] = found.coef_[0], [0, found.intercept_[0]]
        else:
            weights[present], intercepts[present] = found.coef_, found.intercept_
        return cls(weights, intercepts)

    def size(self, whole: Linear) -> float:
        """Returns how large the weights are, as a share of those of a classifier that learned more rows. The penalty
        of the regression shrinks the weights the more, the fewer rows there are."""
        own = np.isfinite(self.intercepts)
        most = float(np.linalg.norm(whole.weights[own]))
        return float(np.linalg.norm(self.weights[own])) / most if most else 1.0

    def __call__(self, vectors: npt.NDArray[np.floating]) -> Vector:
        """Returns the log-odds ``(n, K)``, up to a constant for each row, for vectors ``(n, D)`` of any length."""
        return np.asarray(unit(vectors) @ self.weights.T + self.intercepts)


@dataclass(frozen=True)
class Fitted:
    """A classifier with what is known about its predictions."""

    column: str
    classes: list[Any]
    linear: Linear
    calibration: Calibration | None
    """None if no labelled row was unknown to what predicted it: then no confidence is known."""
    promise: Promise | None
    why: str = ""
    """Why there is no promise."""
    notes: list[str] = field(default_factory=list)

    @property
    def known(self) -> float:
        """The share of labelled rows whose label can be predicted, since another text has it."""
        return 1.0 if self.promise is None else float((self.promise.truth >= 0).mean())

    def probabilities(self, vectors: npt.NDArray[np.floating]) -> Vector:
        """Returns the probabilities ``(n, K)`` of the labels; without a calibration, those of the regression."""
        calibration = self.calibration or Calibration(1.0, np.zeros(len(self.classes)))
        return calibration(self.linear(vectors))


def fit(
    labelled: Labelled,
    vectors: npt.NDArray[np.floating],
    taught: npt.NDArray[np.bool_] | None = None,
    by_fold: Mapping[int, Vector] | None = None,
) -> Fitted:
    """Fits the classifier of labelled texts to their vectors ``(n, D)``, and calibrates it.

    ``taught`` are the texts whose labels taught the encoder before the run; they are learned from, but neither
    calibrate nor judge. ``by_fold`` are the log-odds of the texts of each fold, ``(m, K)``, by the encoder and the
    classifier that did not know them, if ``labelled.how`` is ``encoders``.
    """
    labels, folds, count = labelled.labels, labelled.folds, len(labelled.classes)
    linear = Linear.fit(vectors[labelled.known()], labels[labelled.known()], count)
    how, numbers = labelled.how, np.unique(folds[folds >= 0])
    odds = np.full((len(labels), count), -np.inf)
    predicted, sizes = np.zeros(len(labels), dtype=bool), list[float]()
    for fold in numbers.tolist():
        own, others = folds == fold, (folds != fold) & (labels >= 0)
        if how == "encoders" and (by_fold is None or fold not in by_fold):
            continue
        if how != "held out":
            without = Linear.fit(vectors[others], labels[others], count)
            sizes.append(without.size(linear))
            odds[own] = by_fold[fold] if how == "encoders" and by_fold else without(vectors[own])
        else:
            odds[own] = linear(vectors[own])
        predicted[own] = True
    honest = predicted if taught is None else predicted & ~taught
    if honest.sum() < FEWEST:
        why = f"{honest.sum()} labelled texts were unknown to what predicts them, and {FEWEST} are needed"
        return Fitted(labelled.column, labelled.classes, linear, None, None, why)
    rows = np.flatnonzero(honest)
    parts = folds[rows]
    if how == "held out":  # the classifier is one, but the calibration is fitted to rows that it does not judge
        parts = np.empty(len(rows), dtype=np.int64)
        parts[np.argsort(labels[rows], kind="stable")] = np.arange(len(rows)) % 10
    probabilities = cross_calibrated(odds[rows], labels[rows], parts)
    known = float((labels[rows] >= 0).mean())
    promise = Promise(
        labelled.classes,
        labels[rows],
        probabilities.argmax(1),
        known * probabilities.max(1),
        HOW[how].format(len(numbers)),
        1.0 if how == "held out" else DESIGN,
    )
    notes = []
    if len(rows) < predicted.sum():
        notes.append(
            f"{predicted.sum() - len(rows):,} labelled texts do not judge, since their labels, or pairs of "
            "them, taught the encoder before this run"
        )
    if len(labels) == MOST_OTHERS:
        notes.append(f"at most {MOST_OTHERS:,} labelled texts are used")
    calibration = calibrate(odds[rows], labels[rows]).smaller(float(np.mean(sizes or [1.0])))
    return Fitted(labelled.column, labelled.classes, linear, calibration, promise, notes=notes)


def texts_taught(taught: Iterable[Taught], texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Returns for each text whether its label, or a pair with it, which may have been made from labels, taught one of
    some encoders; all, if unknown ones taught one."""
    each = list(taught)
    if any(one.unknown for one in each):
        return np.ones(len(texts), dtype=bool)
    known = np.zeros(len(texts), dtype=bool)
    for one in each:
        known |= one.has_labels(texts) | one.has_pairs(texts)
    return known
