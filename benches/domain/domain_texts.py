"""Positives and negatives for training on in-domain documents; ``TrainConfig.imports`` loads them from this file.

=============  ====================================================================  =============
name           texts                                                                 used as
=============  ====================================================================  =============
cuts           two short spans; their lengths do not depend on the document          positive
neighbours     two neighbouring passages of a document                               positive
search         a query (words or a span of a document), and the document             positive
mined          another document, mined by TF-IDF or the base model                   negative
=============  ====================================================================  =============
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cse.augment import AUGMENTATIONS
from cse.augment.base import Draws, Edit, Paired, Pairing

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CutsOptions:
    """Options of ``cuts``."""

    shortest: int = 8
    longest: int = 48


def span(words: list[str], length: int, place: float) -> str:
    """Returns ``length`` consecutive words, or all if there are fewer; ``place`` (0 to 1) determines the start."""
    length = min(length, len(words))
    start = int(place * (len(words) - length + 1))
    return " ".join(words[start : start + length])


class Cuts(Pairing):
    """Two spans of a document, each with a random number of words; a shorter document is used whole."""

    Options = CutsOptions

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> Paired:
        """Returns the spans."""
        low, high = self.options.shortest, self.options.longest
        sides: list[list[str]] = []
        for side in ("cut", "other cut"):
            u = draws.uniform(rows, side, 2)
            lengths = (low + u[:, 0] * (high - low + 1)).astype(int)
            sides.append([span(t.split(), n, p) for t, n, p in zip(texts, lengths, u[:, 1], strict=True)])
        return Paired(sides[0], sides[1])


@dataclass(frozen=True)
class NeighboursOptions:
    """Options of ``neighbours``."""

    words: int = 40


class Neighbours(Pairing):
    """The passages before and after a random place in the document; a short document is cut into halves."""

    Options = NeighboursOptions

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> Paired:
        """Returns the passages."""
        first, second = [], []
        for text, u in zip(texts, draws.uniform(rows, "neighbours")[:, 0], strict=True):
            words = text.split()
            size = max(1, min(self.options.words, len(words) // 2))
            at = size + int(u * (len(words) - 2 * size + 1))
            first.append(" ".join(words[at - size : at]))
            second.append(" ".join(words[at : at + size]) or text)
        return Paired(first, second)


@dataclass(frozen=True)
class SearchOptions:
    """Options of ``search``."""

    kind: Literal["words", "ordered", "span"] = "words"
    """``words``: words drawn by TF-IDF, in random order; ``ordered``: in text order; ``span``: consecutive words."""
    fewest: int = 4
    most: int = 12
    longest: int = 0
    """Number of words of the positive, a span of the document; 0: the whole document."""


class Search(Pairing):
    """Anchors that look like search queries for a document; the document, or a span of it, is the positive."""

    Options = SearchOptions

    def __init__(self, options: SearchOptions, context: Any) -> None:
        super().__init__(options, context)
        self.index = context.index
        self.scores = {term: score for term, score in zip(self.index.terms, self.index.idf, strict=True)}

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> Paired:
        """Returns queries and documents."""
        options = self.options
        anchors, positives = [], []
        counts = draws.uniform(rows, "search count")[:, 0]
        places = draws.uniform(rows, "search place")[:, 0]
        keys = draws.uniform(rows, "search words", 1024)
        for text, u, place, key in zip(texts, counts, places, keys, strict=True):
            size = options.fewest + int(u * (options.most - options.fewest + 1))
            anchors.append(self.search(text, size, key) or text)
            positives.append(span(text.split(), options.longest, place) if options.longest else text)
        return Paired(anchors, positives)

    def search(self, text: str, size: int, key: npt.NDArray[np.float64]) -> str:
        """Returns a query of at most ``size`` words; empty if no word of the text has a weight."""
        found = self.index.tokenize(text)[: len(key)]
        weights = np.array([max(self.scores.get(term, 0.0), 0.0) for _, _, term in found])
        if not weights.any():
            return ""
        # Draws without replacement in proportion to the weights: the words with the largest u^(1/w) (Efraimidis 2006).
        order = np.argsort(-np.log(np.maximum(key[: len(found)], 1e-12)) / np.maximum(weights, 1e-9))
        if self.options.kind == "span":
            start = max(0, min(int(order[0]) - size // 2, len(found) - size))
            last = min(start + size, len(found)) - 1
            return text[found[start][0] : found[last][1]]
        once: dict[str, int] = {}
        for number in order.tolist():
            once.setdefault(found[number][2], number)
            if len(once) == size:
                break
        places = list(once.values()) if self.options.kind == "words" else sorted(once.values())
        return " ".join(text[found[number][0] : found[number][1]] for number in places)


@dataclass(frozen=True)
class MinedOptions:
    """Options of ``mined``."""

    by: Literal["tfidf", "base"] = "tfidf"
    first: int = 10
    last: int = 50
    """One of the neighbours with ranks ``first`` to ``last`` is drawn; the nearest neighbour has rank 1."""
    model: str = "minilm"
    """The model for ``by = "base"``. The method loads its own copy, because the encoder of the run is loaded later."""


class Mined(Edit):
    """Another document, drawn from the document's nearest neighbours with ranks ``first`` to ``last``."""

    Options = MinedOptions

    def __init__(self, options: MinedOptions, context: Any) -> None:
        super().__init__(options, context)
        self.corpus = context.corpus
        texts = self.corpus.take(np.arange(len(self.corpus)))
        if options.by == "tfidf":
            from sklearn.preprocessing import normalize as unit_rows

            matrix = unit_rows(context.index.transform(texts))
            cosines = (matrix @ matrix.T).toarray()
        else:
            vectors = context.load_model(options.model, "mined.model").model.encode(texts)
            cosines = vectors @ vectors.T
        np.fill_diagonal(cosines, -np.inf)
        held_out = np.setdiff1d(np.arange(len(texts)), context.rows)
        cosines[:, held_out] = -np.inf
        self.ranked = np.argsort(-cosines, axis=1, kind="stable")[:, options.first - 1 : options.last]

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[str]:
        """Returns the documents."""
        u = draws.uniform(rows, "mined")[:, 0]
        chosen = self.ranked[rows, (u * self.ranked.shape[1]).astype(int)]
        return list(self.corpus.take(chosen))


AUGMENTATIONS.register("cuts", Cuts)
AUGMENTATIONS.register("neighbours", Neighbours)
AUGMENTATIONS.register("search", Search)
AUGMENTATIONS.register("mined", Mined)
