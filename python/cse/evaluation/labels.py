"""A column of labels as what judges an encoder: the rows whose labels follow from the embeddings of other rows.

The other rows are those that were not held out to be judged, or if there are none, the other folds of the judged rows.
Rows are chosen by hashes of their texts, so that they do not depend on the seed of a run or on the order of a file.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data import readers
from ..data.classes import Classes, read_classes
from ..data.corpus import Corpus
from ..errors import InputError
from ..identity import common_keys, first_rows, letter_keys, most_common, text_groups
from ..search.bm25 import Terms
from ..ties import at_least, best
from .base import FEWEST, Encodes, Evaluation, Mask, Progress, Report, Sample, Seen, check_apart, embed
from .geometry import unit
from .options import MOST_ROWS, LabelsOptions
from .significance import BETTER, scores_of
from .verdict import judge

Vector = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

# Number of neighbours whose labels are counted, of folds of the logistic regression, and of divisions into folds.
NEIGHBOURS, FOLDS, SPLITS = 10, 5, 5
# The fractions of the rows that training holds out to judge by their labels; a later one, if most classes need it.
SHARES = (0.2, 0.3, 0.4, 0.5)
# Number of texts with labels from which rows are held out if labels teach; with fewer, all teach (``CrossFitted``).
ENOUGH = 500
# Most other rows from which the labels of held-out rows are predicted.
MOST_OTHERS = 5000


@dataclass(frozen=True)
class LabelledTexts:
    """Distinct texts, and the number of the class of each, ``(n,)``, in a column of labels."""

    column: str
    texts: list[str]
    labels: npt.NDArray[np.int64]
    others: list[str] = field(default_factory=list)
    """Texts from whose labels the labels of ``texts`` are predicted; if empty, from the other folds of ``texts``."""
    labels_of_others: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    notes: list[str] = field(default_factory=list)
    """Remarks on rows that do not judge."""

    def only(self, kept: Mask) -> LabelledTexts:
        """Returns these with the texts of a mask only."""
        return replace(self, texts=list(compress(self.texts, kept)), labels=self.labels[kept])


def neighbours(
    vectors: Vector, labels: Rows, others: tuple[Vector, Rows] | None = None, count: int = NEIGHBOURS
) -> Vector:
    """Returns 1 for each row ``(n, D)`` whose label is the most frequent one of its nearest others, or else of its
    nearest other rows, else 0. Rows have unit length. Votes are weighted by 1 + cosine / 1000, which decides between
    equal numbers of votes; they are divided by the share of their label among the others, so that a frequent label is
    not preferred."""
    points, known = others or (vectors, labels)
    cosines = vectors @ points.T
    if others is None:
        np.fill_diagonal(cosines, -np.inf)
    nearest = best(cosines, min(count, len(known) - (others is None)))
    votes = np.zeros((len(labels), max(labels.max(), known.max()) + 1))
    weights = 1 + np.take_along_axis(cosines, nearest, 1) / 1e3
    np.add.at(votes, (np.arange(len(labels))[:, None], known[nearest]), weights)
    scale = len(known) / np.maximum(np.bincount(known, minlength=votes.shape[1]), 1)
    votes *= scale
    largest = at_least(votes, votes.max(1, keepdims=True), count / 1e3 * scale.max())  # the size of the sums of cosines
    return np.asarray(largest.argmax(1) == labels, dtype=np.float64)


def classified(
    fit: Callable[[Any, Rows], Any],
    rows: Any,
    labels: Rows,
    others: tuple[Any, Rows] | None = None,
    splits: int = SPLITS,
) -> Vector:
    """Returns 1 for each row whose label a classifier predicts, else 0. It is fitted to the others or, without them, to
    the four other folds; then, the value is the mean over ``splits`` divisions into folds. ``fit(rows, labels)``
    returns a function from rows to predictions."""
    from sklearn.model_selection import StratifiedKFold

    if others is not None:
        return np.asarray(fit(*others)(rows) == labels, dtype=np.float64)
    right = np.zeros(len(labels))
    for split in range(splits):
        for train, test in StratifiedKFold(FOLDS, shuffle=True, random_state=split).split(labels, labels):
            right[test] += fit(rows[train], labels[train])(rows[test]) == labels[test]
    return right / splits


def regression(rows: Any, labels: Rows) -> Any:
    """Fits a ``LogisticRegression``, with C = 1 and rows weighted so that all labels have the same weight."""
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000, class_weight="balanced").fit(rows, labels)


def logistic(rows: Any, labels: Rows) -> Callable[[Any], Any]:
    """Fits ``regression``, and returns its function from rows to labels."""
    if len(np.unique(labels)) < 2:
        return lambda rows: labels[:1].repeat(rows.shape[0])
    return regression(rows, labels).predict  # type: ignore[no-any-return]


def predict(known: npt.NDArray[np.floating], labels: Rows, vectors: npt.NDArray[np.floating]) -> Rows:
    """Returns the labels that the classifier of the verdict predicts for embeddings ``(m, D)``, given the embeddings
    ``(n, D)`` of other rows and their labels: a logistic regression on vectors of unit length."""
    return np.asarray(logistic(unit(known), labels)(unit(vectors)))


def words(texts: Any, labels: Rows) -> Callable[[Any], Any]:
    """Fits a logistic regression to TF-IDF vectors of terms and pairs of terms. Terms are those of the search by words
    (``cse.search.bm25``), without stemming and stop words, so that scripts without spaces have them too; and emoji."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    split = Terms()

    def terms(text: str) -> list[str]:
        return [*split([text])[0], *(sign for sign in text if unicodedata.category(sign) == "So")]

    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, lowercase=False, token_pattern=None, tokenizer=terms
    )
    try:
        predict = logistic(vectorizer.fit_transform(texts), labels)
    except ValueError:  # no text has a term
        return most_frequent(texts, labels)
    return lambda texts: predict(vectorizer.transform(texts))


def most_frequent(texts: Any, labels: Rows) -> Callable[[Any], Any]:
    """Predicts the most frequent label for each text."""
    label = np.bincount(labels).argmax()
    return lambda texts: np.full(len(texts), label)


def distinct(corpus: Corpus) -> Rows:
    """Returns the first row of each different text (``cse.identity``) that is not blank."""
    rows = corpus.filled()
    return rows[first_rows(corpus.row_keys()[rows])]


class TooFewLabels(InputError):
    """Labels of so few rows that they judge nothing."""


def capped(labels: Rows, most: int) -> Mask:
    """Returns which of ``(n,)`` rows are kept if there are more than ``most``: the first ones of each label, as many as
    its share, but at least ``FEWEST`` of each label that has them, so that a rare label still judges. If there are too
    many labels for that, the most frequent ones are kept."""
    if len(labels) <= most:
        return np.ones(len(labels), dtype=bool)
    counts = np.bincount(labels)
    least = np.minimum(counts, FEWEST)
    ranked = np.argsort(-counts, kind="stable")
    least[ranked[np.cumsum(least[ranked]) > most]] = 0
    quota = np.where(least > 0, np.maximum(least, counts * most // len(labels)), 0)
    while quota.sum() > most:
        quota[np.argmax(quota - least)] -= 1
    order = np.argsort(labels, kind="stable")
    place = np.empty(len(labels), dtype=np.int64)  # of each row among those of its label
    place[order] = np.arange(len(labels)) - (np.cumsum(counts) - counts)[labels[order]]
    return np.asarray(place < quota[labels])


def choose_labelled(
    corpus: Corpus, classes: Classes, shares: Sequence[float] = SHARES, most: int = MOST_ROWS, rare: bool = False
) -> tuple[LabelledTexts, Rows]:
    """Chooses the texts of the smallest hashes to be judged by their labels, the others of which predict these; returns
    them and their rows. Of several shares, the first one is taken with which most of the classes that can have
    ``FEWEST`` of the chosen texts do; those with fewer neither judge nor predict, since a label of one text would
    outweigh the others in ``neighbours``; with ``rare``, rows of these labels are also returned.

    With fewer than two classes, all texts with labels judge each other if they are at most half of the texts of the
    corpus, unless ``rare`` or other ``shares`` were given; else, raises ``TooFewLabels``."""
    rows, text, first, common = distinct_texts(corpus, classes)
    labels, apart = np.unique(classes.of_rows[first], return_inverse=True)[1], np.flatnonzero(~common)
    total, count, frequent = len(np.unique(labels)), 0, np.zeros(0, dtype=np.int64)
    can = int((shares[-1] * np.bincount(labels[apart]) >= FEWEST).sum())
    for share in shares:
        count = int(share * len(first))
        frequent = np.flatnonzero(np.bincount(labels[apart[:count]]) >= FEWEST)
        if 2 * len(frequent) > can:
            break
    if len(frequent) < 2:
        if shares is SHARES and not rare and 2 * len(first) <= len(distinct(corpus)):
            return choose_labelled(corpus, classes, (1.0,), most)
        held = "" if shares[0] == 1 else " that would be held out"
        raise TooFewLabels(
            f"--labels {classes.column}: fewer than two classes have {FEWEST} of the {count:,} rows{held}"
        )
    chosen = apart[:count][np.isin(labels[apart[:count]], frequent)]
    notes = classes.describe(distinct(corpus), FEWEST)
    if len(chosen) > most:
        notes.append(f"at most {most:,} of {len(chosen):,} rows judge: of each label, those of the smallest hashes")
        chosen = chosen[capped(labels[chosen], most)]
    others = np.setdiff1d(np.flatnonzero(np.isin(labels, frequent)), chosen) if shares[0] < 1 else rows[:0]
    if len(frequent) < total:
        notes.append(
            f"{len(chosen):,} rows of {len(frequent):,} of the {total:,} labels judge, which have {FEWEST} or more"
        )
    if len(others) > MOST_OTHERS:
        notes.append(f"labels are predicted from {MOST_OTHERS:,} of the {len(others):,} other rows")
        others = others[capped(labels[others], MOST_OTHERS)]
    texts, known = corpus.take(first[chosen]), corpus.take(first[others])
    judged = LabelledTexts(classes.column, texts, labels[chosen], known, labels[others], notes)
    if rare:
        chosen = np.union1d(chosen, apart[:count][~np.isin(labels[apart[:count]], frequent)])
    return judged, rows[np.isin(text, chosen)]


def samples_of(
    column: str,
    vectors: npt.NDArray[np.floating],
    labels: Rows,
    others: tuple[npt.NDArray[np.floating], Rows] | None = None,
) -> list[Sample]:
    """Returns the samples of a column of labels for the embeddings of its rows, ``(n, D)``, which are predicted from
    the others' ``(m, D)`` or, without them, from each other; a value is 100 or 0, or a mean over folds."""
    points, known = unit(vectors), None if others is None else (unit(others[0]), others[1])
    found = {
        f"{column} of {NEIGHBOURS} nearest neighbours": neighbours(points, labels, known),
        f"{column} by logistic regression": classified(logistic, points, labels, known),
    }
    return [Sample(name, 100 * values, classes=labels, unit="rows") for name, values in found.items()]


@dataclass(frozen=True)
class Fold:
    """A part of the rows with labels: its texts and the others, and its rows of the corpus."""

    texts: LabelledTexts
    rows: Rows


def distinct_texts(corpus: Corpus, classes: Classes) -> tuple[Rows, Rows, Rows, npt.NDArray[np.bool_]]:
    """Returns the n rows with a label; ``(n,)`` the position of the text of each among the m different texts, by the
    smallest hashes of their rows; ``(m,)`` the first row of each text; and ``(m,)`` whether it is common. Texts with
    the same row key or the same letters (``cse.identity``) are one text, so that none is judged by an encoder, or by a
    classifier, that another one's label taught."""
    filled, keys, hashes = corpus.word_counts() > 0, corpus.row_keys(), corpus.hashes()
    rows = np.flatnonzero(classes.of_rows >= 0)
    texts, first, text = np.unique(keys[rows], return_index=True, return_inverse=True)
    groups = text_groups(texts, letter_keys(corpus.take(rows[first])))
    order = np.lexsort((hashes[rows], groups[text]))  # the rows of a group one after the other
    rows, text = rows[order], text[order]
    _, first, group = np.unique(groups[text], return_index=True, return_inverse=True)
    common = np.bincount(group) > most_common(int(filled.sum()))
    common[group[np.isin(texts, common_keys(keys[filled], int(filled.sum())))[text]]] = True
    order = np.argsort(hashes[rows[first]], kind="stable")
    return rows, np.argsort(order)[group], rows[first[order]], common[order]


def choose_folds(corpus: Corpus, classes: Classes, count: int | None) -> list[Fold]:
    """Divides the distinct texts with labels into ``count`` folds (None: ``FOLDS`` with fewer than ``ENOUGH`` texts,
    else none), of which each has equally many of each label; labels of fewer than ``FEWEST`` texts neither judge nor
    predict, but their rows are divided too. With fewer than two other labels, raises ``TooFewLabels``, or
    ``InputError`` if ``count`` was given."""
    rows, text, first, common = distinct_texts(corpus, classes)
    labels, given = classes.of_rows[first], count
    if count is None:
        count = FOLDS if len(first) < ENOUGH else 0
    if count == 0:
        return []
    if count == 1:
        raise InputError("--folds: 1 leaves no labels to learn from; give 0, or at least 2")
    least, counts = max(FEWEST, count), np.bincount(labels[~common], minlength=len(classes.names))
    if (counts >= least).sum() < 2:
        most = int(np.sort(counts)[-2]) if len(counts) > 1 else 0
        few = f"fewer than two labels have {least} of the {len(first):,} texts"
        if given is not None and most >= FEWEST:
            raise InputError(f"--folds {given}: {few}; give at most {most}")
        raise TooFewLabels(f"--labels {classes.column}: {few}")
    frequent = counts[labels] >= least
    can = np.flatnonzero(frequent & ~common)
    judges = can[capped(labels[can], MOST_ROWS)]
    dealt = np.full(len(labels), -1)
    rest = np.flatnonzero(~frequent & ~common)
    every = np.concatenate([each[np.argsort(labels[each], kind="stable")] for each in (judges, rest)])
    dealt[every] = np.arange(len(every)) % count
    texts = np.array(corpus.take(first), dtype=object)
    notes = classes.describe(distinct(corpus), least)
    if len(can) < len(labels):
        notes.append(f"{len(can):,} texts of {(counts >= least).sum():,} labels judge, which have {least} or more")
    if len(judges) < len(can):
        notes.append(f"at most {MOST_ROWS:,} of these texts judge: of each label, those with the smallest hashes")
    folds = []
    for fold in range(count):
        own, others = (np.flatnonzero(frequent & each) for each in (dealt == fold, dealt != fold))
        others = others[capped(labels[others], MOST_OTHERS)]
        sides = (list(texts[own]), labels[own], list(texts[others]), labels[others])
        folds.append(Fold(LabelledTexts(classes.column, *sides, notes), rows[dealt[text] == fold]))
    return folds


class CrossFitted(Evaluation):
    """Labels of the texts of each fold, predicted from the labels of the other folds; for the encoders of a run, by the
    encoder that was trained without the fold."""

    by_labels, trains = True, True

    def __init__(self, options: LabelsOptions, data: list[Fold]) -> None:
        super().__init__(options, data)
        self.folds, self.rows = [Labels(options, fold.texts) for fold in data], [fold.rows for fold in data]

    def known(self, seen: Seen) -> Mask:
        return np.concatenate([fold.known(seen) for fold in self.folds])

    def only(self, kept: Mask) -> CrossFitted | None:
        labels = np.concatenate([fold.texts.labels for fold in self.folds])
        enough = kept & np.isin(labels, frequent_labels(labels[kept]))
        parts = np.split(enough, np.cumsum([len(fold.texts.labels) for fold in self.folds])[:-1])
        if len(np.unique(labels[enough])) < 2 or not all(part.any() for part in parts):
            return None
        texts = [fold.texts.only(part) for fold, part in zip(self.folds, parts, strict=True)]
        return CrossFitted(self.options, [Fold(*each) for each in zip(texts, self.rows, strict=True)])

    def work(self) -> int:
        return sum(fold.work() for fold in self.folds)

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        return self.joined([fold(encoder, progress).samples for fold in self.folds])

    def judged(self, encoder: Encodes, by_fold: Callable[[Any], list[list[Sample]]] | None = None) -> Report:
        return self(encoder) if by_fold is None else self.joined(by_fold(self))

    def joined(self, samples: list[list[Sample]]) -> Report:
        """Returns the report of the samples of the folds, in their order."""
        classes = np.concatenate([fold.texts.labels for fold in self.folds])
        joined = [together(each, classes) for each in zip(*samples, strict=True)]
        beside = [together(each, classes) for each in zip(*(fold.beside for fold in self.folds), strict=True)]
        count = len(self.folds)
        how = f"judged: {count} encoders trained on {count - 1}/{count} of the labels; saved: one trained on all"
        return report_of(joined, beside, [how, *self.folds[0].texts.notes])

    def describe(self) -> str:
        """Returns how the labels judge, and what they can show."""
        count, texts = len(self.folds), self.folds[0].texts
        labels = np.concatenate([fold.texts.labels for fold in self.folds])
        shows = what_shows(labels)
        how = f"{count} further encoders are trained after this one, each without 1/{count} of the labels, to judge it"
        return "; ".join([f"{len(labels):,} rows judge, and all teach: {how}; {shows}", *texts.notes])


def frequent_labels(labels: Rows) -> Rows:
    """Returns the labels that at least ``FEWEST`` of ``(n,)`` rows have; the others do not judge."""
    kinds, counts = np.unique(labels, return_counts=True)
    return np.asarray(kinds[counts >= FEWEST])


def together(samples: Sequence[Sample], classes: Rows) -> Sample:
    """Returns a sample with the examples of several samples of the same task, and the classes of all."""
    return replace(samples[0], values=np.concatenate([sample.values for sample in samples]), classes=classes)


def report_of(samples: list[Sample], beside: list[Sample], notes: list[str]) -> Report:
    scores = scores_of([*samples, *beside]).items()
    rows = [{"task": name, "rows": len(samples[0].values), "mean recall": score} for name, score in scores]
    for row, sample in zip(rows, [*samples, *beside], strict=True):
        row["accuracy"] = float(sample.values.mean())
    return Report(rows, notes=notes, samples=samples, beside=beside)


class Labels(Evaluation):
    """Mean recall of labels by nearest neighbours, and by a logistic regression, on the distinct rows of a table, or on
    ``LabelledTexts`` in memory; also of the most frequent label and of TF-IDF. The mean over the labels
    of the share of their rows that is found: the accuracy, if all labels have the same number of rows."""

    Options = LabelsOptions
    by_labels = True
    summary = (
        "mean recall of a column of labels on --data TABLE, by 10 nearest neighbours (leave-one-out) and by logistic "
        "regression (mean over five divisions into five folds)"
    )

    def __init__(self, options: LabelsOptions, data: str | LabelledTexts | None) -> None:
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
        classes = read_classes(corpus, options.labels, f"--labels {options.labels}", given=True)
        shares = SHARES if options.share == SHARES[0] else (options.share,)  # as cse train takes them
        self.texts, _ = choose_labelled(corpus, classes, shares, options.rows)

    def known(self, seen: Seen) -> Mask:
        return seen(self.texts.texts)

    def only(self, kept: Mask) -> Labels | None:
        """Returns the evaluation of some rows, without those of labels of which fewer than ``FEWEST`` are left."""
        labels = self.texts.labels
        frequent = frequent_labels(labels[kept])
        rest = self.texts.only(kept & np.isin(labels, frequent))
        if len(frequent) < 2:
            return None
        if gone := len(np.unique(labels)) - len(frequent):
            rest = replace(
                rest, notes=[*rest.notes, f"labels of fewer than {FEWEST} of the other rows do not judge: {gone}"]
            )
            known = np.isin(rest.labels_of_others, frequent)
            others = list(compress(rest.others, known))
            rest = replace(rest, others=others, labels_of_others=rest.labels_of_others[known])
        return Labels(self.options, rest)

    def work(self) -> int:
        return len(self.texts.texts) + len(self.texts.others)

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        vectors, known = embed(encoder, [self.texts.texts, self.texts.others], progress)
        check_apart(vectors)
        others = (known, self.texts.labels_of_others) if self.texts.others else None
        samples = samples_of(self.texts.column, vectors, self.texts.labels, others)
        return report_of(samples, self.beside, self.texts.notes)

    @cached_property
    def beside(self) -> list[Sample]:
        """The samples of what needs no encoder."""
        texts, known = (np.array(each, dtype=object) for each in (self.texts.texts, self.texts.others))
        others = (known, self.texts.labels_of_others) if self.texts.others else None
        kinds = {"most frequent label": most_frequent, "TF-IDF and logistic regression": words}
        # One division into folds, since a classifier of 100 labels takes seconds for each fold.
        values = {name: 100 * classified(fit, texts, self.texts.labels, others, 1) for name, fit in kinds.items()}
        return [
            Sample(f"{self.texts.column} by {name}", each, classes=self.texts.labels, unit="rows")
            for name, each in values.items()
        ]

    def describe(self) -> str:
        """Returns what these labels can show, and remarks on rows that do not judge."""
        texts = self.texts
        return "; ".join([f"{len(texts.texts):,} rows judge: {what_shows(texts.labels)}", *texts.notes])


def what_shows(labels: Rows) -> str:
    """Returns what the verdict can show by these labels."""
    smallest = visible(labels)
    shows = "no difference will show" if smallest is None else f"a difference below {smallest:.1f} will not show"
    return f"if one in ten of them changes, {shows}"


def visible(labels: Rows) -> float | None:
    """Returns the smallest difference in points that the verdict shows if one row in ten changes; None: none."""
    n = len(labels)
    changed = np.random.default_rng(0).permutation(n)[: max(1, n // 10)]

    def difference(up: int) -> float | None:
        before, after = np.full(n, 100.0), np.full(n, 100.0)
        before[changed[:up]], after[changed[up:]] = 0, 0
        first, second = ([Sample("labels", each, classes=labels)] for each in (before, after))
        found = judge(first, second)
        return found.measures[0]["mean"] if found.word == BETTER else None

    low, high = (len(changed) - 1) // 2, len(changed)  # the number of rows that rise; ``low`` does not show
    best = difference(high)
    while best is not None and high - low > 1:
        middle = (low + high) // 2
        if (shown := difference(middle)) is None:
            low = middle
        else:
            high, best = middle, shown
    return best
