"""What judges an encoder: a column of labels, judged queries, halves of development sets, and held-out pairs.

A measure returns one value for each example; ``cse.evaluation.verdict`` compares the values of two encoders. Its rows
are chosen by hashes of their texts, so that they do not depend on the seed of a run or on the order of a file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from annotated_types import Ge, Gt, Le

from ..data import readers
from ..data.corpus import Corpus
from ..data.pairs import values_of
from ..errors import InputError
from ..options import Opt
from ..ties import at_least, best
from .base import Encodes, Evaluation, Pairs, Progress, Report, Sample, embed
from .geometry import half_ranks, unit
from .retrieval import Retrieval, RetrievalOptions
from .significance import sentence_clusters
from .sts import pair_cosines

Measure = Callable[[Encodes], list[Sample]]
Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Number of neighbours whose labels are counted, and of folds of the logistic regression.
NEIGHBOURS, FOLDS = 10, 5
# Least number of rows of a class, and of groups of pairs in each half of a development set.
FEWEST = 10
# Most rows that are judged by their labels, and the fraction of the rows that training holds out for it.
MOST_ROWS, SHARE = 2000, 0.2


@dataclass(frozen=True)
class LabelledTexts:
    """Distinct texts, and the number of the class of each, ``(n,)``, in a column of labels."""

    column: str
    texts: list[str]
    labels: npt.NDArray[np.int64]

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> list[Sample]:
        """Returns two samples: whether the labels follow from the nearest neighbours, and from a linear classifier."""
        (vectors,) = embed(encoder, [self.texts], progress)
        return samples_of(self.column, vectors, self.labels)


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


def halve(sets: Mapping[str, Pairs]) -> tuple[dict[str, Pairs], dict[str, Pairs]]:
    """Splits development sets in two, one half to select by and one to judge by; no sentence is in both. Groups of
    pairs that share a sentence, directly or through other pairs, are dealt to the halves in turn, the largest first. If
    a half of a set would have fewer than ``FEWEST`` groups or equal scores, all pairs select, none judge."""
    rows = [
        (name, place, *pair)
        for name, pairs in sets.items()
        for place, pair in enumerate(zip(pairs.left, pairs.right, strict=True))
    ]

    def key(group: Rows) -> tuple[int, bytes]:
        texts = (text for row in group for text in rows[row][2:])
        return -len(group), min(hashlib.blake2b(text.encode("utf8", "replace")).digest() for text in texts)

    halves: tuple[list[Rows], list[Rows]] = ([], [])
    counts = [0, 0]
    for group in sorted(sentence_clusters([row[2] for row in rows], [row[3] for row in rows]), key=key):
        side = int(counts[1] < counts[0])
        counts[side] += len(group)
        halves[side].append(group)
    split: list[dict[str, Pairs]] = [{}, {}]
    for half, groups in zip(split, halves, strict=True):
        for name, pairs in sets.items():
            own = [[rows[row][1] for row in group if rows[row][0] == name] for group in groups]
            chosen = sorted(chain.from_iterable(own))
            texts = ([side[row] for row in chosen] for side in (pairs.left, pairs.right))
            half[name] = Pairs(pairs.gold[chosen], *texts)
            if sum(map(bool, own)) < FEWEST or len(set(half[name].gold)) < 2:
                return dict(sets), {}
    return split[0], split[1]


def scored_pairs(name: str, pairs: Pairs) -> Measure:
    """Returns the measure of a development set: the cosines of its pairs, scored by Spearman's correlation."""

    def measure(encoder: Encodes) -> list[Sample]:
        cosines = pair_cosines(*embed(encoder, [pairs.left, pairs.right]))
        task = f"Spearman's correlation on half of {Path(name).name}"
        return [Sample(task, cosines, pairs.gold, (pairs.left, pairs.right), "pairs")]

    return measure


def judged_queries(folder: str) -> Measure:
    """Returns the measure of a folder of judged queries, in the format of BEIR: nDCG@10 of each query."""
    if not Path(folder).is_dir():
        raise InputError(f"--judged-queries {folder}: no such folder; name one with corpus, queries and qrels")
    retrieval = Retrieval(RetrievalOptions(), folder)

    def measure(encoder: Encodes) -> list[Sample]:
        (sample,) = retrieval(encoder).samples
        return [replace(sample, task="nDCG@10 of the judged queries", unit="queries")]

    return measure


def held_out_pairs(anchors: list[str], positives: list[str]) -> Measure:
    """Returns the measure of pairs: 100, 50 or 0 where both texts, one or neither ranks the other first among all."""

    def measure(encoder: Encodes) -> list[Sample]:
        ranks = half_ranks(*embed(encoder, [anchors, positives]))
        found = sum(50.0 * (each == 1) for each in ranks)
        return [Sample("held-out pairs that find each other", np.asarray(found), unit="pairs")]

    return measure


@dataclass(frozen=True)
class LabelsOptions:
    labels: Annotated[str | None, Opt("column that holds the labels")] = None
    column: Annotated[str | None, Opt("column that holds the sentences")] = None
    rows: Annotated[int, Ge(2), Opt("maximum number of rows; those whose texts have the smallest hashes are used")] = (
        MOST_ROWS
    )
    share: Annotated[
        float, Gt(0), Le(1), Opt("fraction of the rows; 0.2: those that cse train --labels holds out from this file")
    ] = 1.0


class Labels(Evaluation):
    """Accuracy of the labels of nearest neighbours, and of a logistic regression, on the distinct rows of a table."""

    Options = LabelsOptions
    summary = (
        "accuracy of a column of labels on --data TABLE, by 10 nearest neighbours (leave-one-out) and by logistic "
        "regression (five folds)"
    )

    def __init__(self, options: Any, data: str | None) -> None:
        super().__init__(options, data)
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
        samples = self.texts(encoder, progress)
        rows = [
            {"task": item.task, "rows": len(item.values), "accuracy": float(item.values.mean())} for item in samples
        ]
        return Report(rows, samples=samples)
