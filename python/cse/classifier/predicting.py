"""Labels for the rows of a table: every row that has none gets the label that the classifier predicts.

Rows are encoded in blocks, of which only the probabilities are stored until the table is written, in a file, from
which an interrupted call resumes (``cse.encoder.vector_files``). In memory are a few numbers for each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import hash_bytes
from ..data.classes import ADDED, Classes, classes_of, label_of
from ..data.corpus import Corpus
from ..data.tables import as_text
from ..data.written import Table
from ..encoder.vector_files import encoded_for, journal_of, made_by
from ..evaluation.base import Encodes, Progress
from ..evaluation.geometry import unit
from ..identity import Keys
from .drawn import OTHERS, Drawn, compare
from .fitted import Fitted
from .promise import THRESHOLDS

SCORES = ".scores"
"""The end of the name of the file of the probabilities."""

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

GIVEN, PREDICTED = "given", "predicted"
LEAST = 10
"""Fewest labelled rows, and other rows, by which it is tested whether labels were drawn at random."""


@dataclass(frozen=True)
class Known:
    """Vectors and row keys of the labelled texts of a run."""

    vectors: Floats
    keys: Keys

    @cached_property
    def unit(self) -> Floats:
        return np.asarray(unit(self.vectors), dtype=np.float32)

    @cached_property
    def farthest(self) -> float:
        """The lowest cosine of a labelled text with the nearest other one. A row drawn as these are has a lower one
        with a probability of about 1 / (n + 1)."""
        cosines = self.unit @ self.unit.T
        np.fill_diagonal(cosines, -np.inf)
        return float(cosines.max(1).min())


class Scores:
    """An encoder whose vectors are the probabilities of the labels and, last, the cosine with the nearest labelled
    text; NaN without labelled texts."""

    def __init__(self, encoder: Any, fitted: Fitted, known: Known | None) -> None:
        self.encoder, self.fitted, self.known = encoder, fitted, known
        self.embedding_dim = len(fitted.classes) + 1

    def encode(self, texts: Sequence[str], *, batch_size: int = 64, progress: Progress | None = None) -> Floats:
        scores = np.full((len(texts), self.embedding_dim), np.nan, dtype=np.float32)
        if not len(texts):
            return scores
        vectors = self.encoder.encode(texts, batch_size=batch_size, progress=progress)
        scores[:, :-1] = self.fitted.probabilities(vectors)
        if self.known is not None:
            scores[:, -1] = (np.asarray(unit(vectors), dtype=np.float32) @ self.known.unit.T).max(1)
        return scores


@dataclass
class Labelling:
    """The labels of the rows of a corpus: those that its table gives, and predicted ones."""

    fitted: Fitted
    corpus: Corpus
    scores: Floats
    """``(N, K + 1)`` from ``Scores``; zeros for a blank row."""
    given: Classes | None
    """The labels in the table itself; None if it has no column of labels."""
    known: Known | None
    drawn: Drawn | None = None
    first: Rows = field(init=False)
    """``(N,)`` the first row of the text of each row, whose label all rows of the text get."""

    def __post_init__(self) -> None:
        keys = self.corpus.row_keys()
        _, first, text = np.unique(keys, return_index=True, return_inverse=True)
        self.first = first[text]

    @cached_property
    def filled(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.corpus.word_counts() > 0)

    @cached_property
    def is_given(self) -> npt.NDArray[np.bool_]:
        none = np.zeros(len(self.corpus), dtype=bool)
        return none if self.given is None else np.asarray(self.given.of_rows >= 0)

    @cached_property
    def is_predicted(self) -> npt.NDArray[np.bool_]:
        return self.filled & ~self.is_given

    @cached_property
    def ranked(self) -> tuple[Rows, Floats, Rows]:
        """The most probable label of each row, its confidence, and the second label, ``(N,)`` each."""
        size = len(self.corpus)
        best, second = (np.zeros(size, dtype=np.int64) for _ in range(2))
        confidence = np.zeros(size, dtype=np.float32)
        for start in range(0, size, 1 << 16):  # the scores may be mapped from a file
            block = np.asarray(self.scores[self.first[start : start + (1 << 16)], :-1])
            order = np.argsort(-block, axis=1, kind="stable")[:, :2]
            own = slice(start, start + len(block))
            best[own], second[own] = order.T
            confidence[own] = np.take_along_axis(block, order[:, :1], 1)[:, 0] * self.fitted.known
        return best, confidence, second

    @cached_property
    def labels(self) -> npt.NDArray[np.object_]:
        """The label that the table gives to each row, ``(N,)``, None without one; as the labels of the run are written,
        if it is one of these."""
        found = np.full(len(self.corpus), None, dtype=object)
        if self.given is not None:
            own = {label_of(as_text(label)): label for label in self.fitted.classes}
            every = [own.get(name, value) for name, value in zip(self.given.names, self.given.values, strict=True)]
            rows = self.is_given
            found[rows] = np.array([*every, None], dtype=object)[self.given.of_rows[rows]]
        return found

    def rows(self, least: float = 0.0) -> Iterator[list[Any]]:
        """Yields the values of the added columns for each row; labels below the least confidence are left out."""
        best, confidence, second = self.ranked
        classes, certain, labels = self.fitted.classes, self.fitted.promise is not None, self.labels
        for row, (given, predicted) in enumerate(zip(self.is_given, self.is_predicted, strict=True)):
            if given:
                yield [labels[row], None, None, GIVEN]
            elif not predicted:
                yield [None] * len(ADDED)
            else:
                sure = float(confidence[row]) if certain else None
                label = classes[best[row]] if sure is None or sure >= least else None
                shown = None if sure is None else round(sure, 4)
                yield [label, shown, classes[second[row]], PREDICTED if label is not None else None]

    @property
    def unlike(self) -> tuple[int, list[str]]:
        """The number of predicted rows that are farther from all labelled texts than these are from each other, and
        the three that are farthest."""
        if self.known is None:
            return 0, []
        nearest = np.array(self.scores[:, -1])
        rows = np.flatnonzero(self.is_predicted & (nearest < self.known.farthest))
        worst = rows[np.argsort(nearest[rows], kind="stable")][:3]
        return len(rows), self.corpus.take(worst)

    def test(self, encoder: Encodes, progress: Progress | None = None) -> Drawn | None:
        """Returns the test whether the labelled rows were drawn from these at random; None if it is not possible."""
        promise = self.fitted.promise
        if self.known is None or promise is None:
            return None
        rows = np.flatnonzero(self.is_predicted & (self.first == np.arange(len(self.first))))
        rows = rows[~np.isin(self.corpus.row_keys()[rows], self.known.keys)]
        rows = rows[np.argsort(self.corpus.hashes()[rows], kind="stable")[:OTHERS]]
        if min(len(rows), len(promise.predicted)) < LEAST:
            return None
        vectors = encoder.encode(self.corpus.take(rows), progress=progress)
        self.drawn = compare(self.known.vectors, vectors, promise.predicted, self.ranked[0][rows], self.fitted.classes)
        return self.drawn

    def summary(self, least: float = 0.0) -> dict[str, Any]:
        """Returns the numbers of rows by their source, and of predicted rows by confidence with what is promised about
        them (``below``: with less than ``least``, which ``rows`` leaves without a label); no accuracy is named if the
        labelled rows were not drawn at random."""
        _, confidence, _ = self.ranked
        predicted, promise = self.is_predicted, self.fitted.promise
        holds = promise is not None and (self.drawn is None or self.drawn.at_random)
        count, texts = self.unlike
        names = [] if self.given is None else self.given.names
        of_rows = np.zeros(0, dtype=np.int64) if self.given is None else self.given.of_rows
        known = {label_of(as_text(each)) for each in self.fitted.classes}
        places = [place for place, name in enumerate(names) if name not in known]
        thresholds = []
        for threshold in THRESHOLDS if promise is not None else ():
            share = promise.above(threshold)[1] if promise is not None and holds else None
            thresholds.append(
                {
                    "confidence": threshold,
                    "rows": int((confidence[predicted] >= threshold).sum()),
                    "accuracy": None if share is None else share._asdict(),
                }
            )
        return {
            "rows": len(self.corpus),
            "given": int(self.is_given.sum()),
            "predicted": int(predicted.sum()),
            "below": int((confidence[predicted] < least).sum()) if promise is not None else 0,
            "blank": int((~self.filled).sum()),
            "unknown": {"rows": int(np.isin(of_rows, places).sum()), "labels": [names[place] for place in places]},
            "texts_with_two_labels": 0 if self.given is None else self.given.two,
            "accuracy": promise.accuracy._asdict() if promise is not None and holds else None,
            "mean_recall": promise.recall._asdict() if promise is not None and holds else None,
            "thresholds": thresholds,
            "drawn": None if self.drawn is None else self.drawn.to_dict(),
            "unlike": {"rows": count, "examples": texts},
        }


def is_begun(output: str) -> bool:
    """Returns whether a call that labels rows for ``output`` was interrupted, so that a repeated one goes on."""
    return journal_of(f"{output}{SCORES}").exists()


@contextmanager
def label_rows(
    encoder: Any,
    fitted: Fitted,
    known: Known | None,
    corpus: Corpus,
    cells: Sequence[Any] | None,
    output: str,
    *,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> Iterator[Labelling]:
    """Context manager that predicts the labels of all rows of a corpus, of whose table ``cells`` are the column of
    labels, if it has one. The probabilities are stored in a file beside ``output`` until the context ends without an
    exception; what a call before wrote there is used if encoder, classifier and corpus are the same."""
    weights = [
        fitted.linear.weights,
        fitted.linear.intercepts,
        *([fitted.calibration.biases] if fitted.calibration else []),
    ]
    content = b"".join(np.ascontiguousarray(each).tobytes() for each in weights)
    key = {
        **made_by(encoder),
        "corpus": [[file.xxh3, file.column, file.rows] for file in corpus.files],
        "classifier": [hash_bytes(content), fitted.calibration.scale if fitted.calibration else None],
        "labelled": None if known is None else hash_bytes(known.vectors.tobytes()),
    }
    scorer, stored = Scores(encoder, fitted, known), f"{output}{SCORES}"
    with encoded_for(scorer, corpus, stored, key, batch_size=batch_size, progress=progress) as scores:
        given = None if cells is None else classes_of(corpus, fitted.column, cells)
        yield Labelling(fitted, corpus, scores, given, known)


def types(values: Sequence[Any]) -> Any:
    """Returns the type of pyarrow that labels have: truth values, integers, numbers or text."""
    import pyarrow as pa

    kinds = {type(value) for value in values}
    for allowed, kind in (({bool}, pa.bool_()), ({int}, pa.int64()), ({int, float}, pa.float64())):
        if kinds and kinds <= allowed:
            return kind
    return pa.string()


def labelled_table(table: Table, labelling: Labelling, prefix: str, least: float) -> Table:
    """Returns a table with the columns of ``ADDED``, which begin with ``prefix``."""
    import pyarrow as pa

    kind = types([*labelling.fitted.classes, *([] if labelling.given is None else labelling.given.values)])
    kinds = dict(zip(ADDED, (kind, pa.float64(), kind, pa.string()), strict=True))

    def values() -> Iterator[Sequence[Any]]:
        as_written: Callable[[Any], Any] = as_text if kind == pa.string() else lambda value: value
        for label, confidence, second, source in labelling.rows(least):
            yield [
                None if label is None else as_written(label),
                confidence,
                None if second is None else as_written(second),
                source,
            ]

    return table.with_columns({f"{prefix} {name}": kinds[name] for name in ADDED}, values)
