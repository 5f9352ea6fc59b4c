"""The labelled texts of a table, from which a classifier is fitted and by which its predictions are judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from ..data.classes import Classes
from ..data.corpus import Corpus
from ..evaluation.labels import MOST_OTHERS, capped, distinct_texts

Rows = npt.NDArray[np.int64]
How: TypeAlias = Literal["classifiers", "encoders", "held out"]

FOLDS = 10
"""Folds of the classifier, if labels did not teach the encoder. With fewer, it learns fewer of the labels, and its
accuracy is put too low."""


@dataclass(frozen=True)
class Labelled:
    """Distinct texts with a label, in the order of their hashes."""

    column: str
    classes: list[Any]
    """The labels that at least two texts have, with the spelling and type of their first cell."""
    texts: list[str]
    labels: Rows
    """``(n,)`` position of the label of each text in ``classes``; -1: no other text has it."""
    folds: Rows
    """``(n,)`` fold of each text; -1: none, so that it is only learned from."""
    how: How
    """What did not know the labels of a fold: a classifier of the others; an encoder and its classifier; or the
    classifier that is saved, which does not know fold 0."""

    def known(self) -> npt.NDArray[np.bool_]:
        """Returns which texts the classifier that is saved is fitted to."""
        return (self.labels >= 0) & ((self.folds < 0) | (self.how != "held out"))


def labelled_texts(
    corpus: Corpus,
    classes: Classes,
    parts: Sequence[Rows] | None = None,
    how: How = "classifiers",
) -> Labelled | None:
    """Returns the labelled texts of a corpus; None if fewer than two labels have two texts.

    ``parts`` are the rows of each fold (None: ``FOLDS`` folds with equally many texts of each label). Of more than
    ``MOST_OTHERS`` texts, those of the smallest hashes are taken of each label.
    """
    _, _, first, _ = distinct_texts(corpus, classes)
    number = classes.of_rows[first]
    kept = capped(number, MOST_OTHERS)
    first, number = first[kept], number[kept]
    frequent = np.flatnonzero(np.bincount(number, minlength=len(classes.names)) >= 2)
    if len(frequent) < 2:
        return None
    place = np.full(len(classes.names), -1)
    place[frequent] = np.arange(len(frequent))
    labels, folds = place[number], np.full(len(first), -1)
    if parts is None:
        folds[np.argsort(number, kind="stable")] = np.arange(len(first)) % FOLDS
    for fold, rows in enumerate(parts or ()):
        folds[np.isin(first, rows)] = fold
    values = [classes.values[label] for label in frequent]
    return Labelled(classes.column, values, corpus.take(first), labels, folds, how)
