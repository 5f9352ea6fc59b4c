"""A column of labels as what judges an encoder: the rows whose labels follow from the embeddings of other rows.

Rows are chosen by hashes of their texts, so that they do not depend on the seed of a run or on the order of a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data import readers
from ..data.corpus import Corpus
from ..data.pairs import values_of
from ..errors import InputError
from ..ties import at_least, best
from .base import Encodes, Evaluation, Progress, Report, Sample, embed
from .geometry import unit
from .options import MOST_ROWS, LabelsOptions

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Number of neighbours whose labels are counted, and of folds of the logistic regression.
NEIGHBOURS, FOLDS = 10, 5
# Least number of rows of a class, of groups of pairs in each half of a development set, and of held-out pairs.
FEWEST = 10
# The fraction of the rows that training holds out to judge by their labels.
SHARE = 0.2


@dataclass(frozen=True)
class LabelledTexts:
    """Distinct texts, and the number of the class of each, ``(n,)``, in a column of labels."""

    column: str
    texts: list[str]
    labels: npt.NDArray[np.int64]


def samples_of(column: str, vectors: npt.NDArray[np.floating], labels: npt.NDArray[np.int64]) -> list[Sample]:
    """Returns the samples of a column of labels for the embeddings of its rows, ``(n, D)``; a value is 100 or 0."""
    points = unit(vectors)
    found = {
        f"{column} of {NEIGHBOURS} nearest neighbours": neighbours(points, labels),
        f"{column} by logistic regression": linear(points, labels),
    }
    return [Sample(name, 100 * values, unit="rows") for name, values in found.items()]


def is_frequent(labels: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Returns for each row whether at least ``FEWEST`` rows have its label, ``(n,)``."""
    return np.bincount(labels)[labels] >= FEWEST


def neighbours(vectors: Vector, labels: npt.NDArray[np.int64], count: int = NEIGHBOURS) -> Vector:
    """Returns 1 for each row ``(n, D)`` whose label is the most frequent one of its nearest other rows, else 0. Rows
    have unit length. Votes are weighted by 1 + cosine / 1000, which decides between equal numbers of votes."""
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = best(cosines, min(count, len(labels) - 1))
    votes = np.zeros((len(labels), labels.max() + 1))
    weights = 1 + np.take_along_axis(cosines, nearest, 1) / 1e3
    np.add.at(votes, (np.arange(len(labels))[:, None], labels[nearest]), weights)
    largest = at_least(votes, votes.max(1, keepdims=True), count / 1e3)  # the size of the sums of cosines / 1000
    return np.asarray(largest.argmax(1) == labels, dtype=np.float64)


def linear(vectors: Vector, labels: npt.NDArray[np.int64]) -> Vector:
    """Returns 1 for each row whose label a logistic regression predicts, trained on the four other folds, else 0."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    predicted = cross_val_predict(LogisticRegression(max_iter=1000), vectors, labels, cv=folds)
    return np.asarray(predicted == labels, dtype=np.float64)


def choose_labelled(
    corpus: Corpus, column: str, share: float = SHARE, most: int = MOST_ROWS
) -> tuple[LabelledTexts | None, Rows, str]:
    """Chooses the texts of the smallest hashes to be judged by their labels; returns them, their rows, and "". Left out
    are rows with a blank text or label, texts that occur with different labels, and classes with fewer than ``FEWEST``
    of the chosen texts. With fewer than two classes, returns None, no rows, and why."""
    flag = f"--labels {column}"
    if others := [file.path for file in corpus.files if file.column is None]:
        raise InputError(
            f"{flag}: {others[0]} is not a table with such a column; name a table, and --column of its text"
        )
    paths = [readers.find_again(file.path) for file in corpus.files]
    names = [name.strip() for name in values_of(paths, flag, column)]
    number = {name: place for place, name in enumerate(sorted(set(names)))}
    labels = np.array([number[name] for name in names], dtype=np.int64)
    rows = np.flatnonzero((corpus.word_counts() > 0) & (labels != number.get("", -1)))
    hashes, first, text = np.unique(corpus.hashes()[rows], return_index=True, return_inverse=True)
    lowest, highest = np.full(len(hashes), len(number)), np.full(len(hashes), -1)
    np.minimum.at(lowest, text, labels[rows])
    np.maximum.at(highest, text, labels[rows])
    chosen = np.flatnonzero(lowest == highest)[: min(most, int(share * len(hashes)))]
    count, chosen = len(chosen), chosen[is_frequent(lowest[chosen])]
    found, classes = np.unique(lowest[chosen], return_inverse=True)
    if len(found) < 2:
        why = f"fewer than two classes have {FEWEST} of the {count:,} rows that would be held out"
        return None, rows[:0], f"{flag}: {why}"
    texts = corpus.take(rows[first[chosen]])
    return LabelledTexts(column, texts, classes.astype(np.int64)), rows[np.isin(text, chosen)], ""


class Labels(Evaluation):
    """Accuracy of the labels of nearest neighbours, and of a logistic regression, on the distinct rows of a table, or
    on ``LabelledTexts`` in memory."""

    Options = LabelsOptions
    summary = (
        "accuracy of a column of labels on --data TABLE, by 10 nearest neighbours (leave-one-out) and by logistic "
        "regression (five folds)"
    )

    def __init__(self, options: Any, data: str | LabelledTexts | None) -> None:
        super().__init__(options, data)
        if isinstance(data, LabelledTexts):
            self.texts = data
            return
        if data is None or options.labels is None or options.column is None:
            raise InputError(
                "the suite labels needs --data TABLE, --set labels.column=NAME (of the sentences) and --set "
                "labels.labels=NAME"
            )
        corpus = Corpus.read(readers.resolve(data, options.column))
        texts, _, why = choose_labelled(corpus, options.labels, options.share, options.rows)
        if texts is None:
            raise InputError(why)
        self.texts = texts

    def work(self) -> int:
        return len(self.texts.texts)

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        (vectors,) = embed(encoder, [self.texts.texts], progress)
        samples = samples_of(self.texts.column, vectors, self.texts.labels)
        rows = [
            {"task": item.task, "rows": len(item.values), "accuracy": float(item.values.mean())} for item in samples
        ]
        return Report(rows, samples=samples)
