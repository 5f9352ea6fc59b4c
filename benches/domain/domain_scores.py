"""Collections of documents, queries and judgements, and retrieval scores."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

# Documents that are held out from training: 5 % of the documents with at least WORDS words, but at least 100 documents,
# and never more than 10 %.
HELD_OUT = (0.05, 100, 0.10)
WORDS = 6


class Collection:
    """A collection (documents, queries, judgements), and data derived from it for scoring, which all runs share.

    Args:
        folder: A folder in the format of ``cse eval --suite retrieval``.
    """

    def __init__(self, folder: Path) -> None:
        from cse.evaluation.options import RetrievalOptions
        from cse.evaluation.retrieval import Retrieval

        self.name, self.folder = folder.name, folder
        retrieval = Retrieval(RetrievalOptions(), str(folder))
        self.ids = sorted(retrieval.documents, reverse=True)  # so that equal scores are ranked by descending id
        self.documents = [retrieval.documents[key] for key in self.ids]
        self.queries = list(retrieval.queries.values())
        self.judgements = list(retrieval.judgements.values())
        digest = hashlib.sha256()
        for part in (self.ids, self.documents, self.queries, [str(sorted(each.items())) for each in self.judgements]):
            digest.update("\n".join(part).encode())
        self.hash = digest.hexdigest()[:12]
        generator = np.random.default_rng(0)
        filled = np.flatnonzero([len(text.split()) >= WORDS for text in self.documents])
        share, least, most = HELD_OUT
        count = min(max(int(share * len(filled)), least), int(most * len(filled)))
        self.held_out: Numbers = np.sort(generator.permutation(filled)[:count])

    def rows(self) -> list[str]:
        """Returns the rows to train on: the documents that are not held out."""
        kept = np.setdiff1d(np.arange(len(self.documents)), self.held_out).tolist()
        return [self.documents[number] for number in kept if self.documents[number].strip()]

    @cached_property
    def index(self) -> Any:
        """TF-IDF index of the documents."""
        from cse import TfidfIndex

        return TfidfIndex.from_texts(self.documents)

    @cached_property
    def bm25(self) -> Any:
        """BM25 index of the documents (Lucene's formula, k1 = 1.5, b = 0.75)."""
        import bm25s

        found = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        found.index(self._tokens(self.documents), show_progress=False)
        return found

    def _tokens(self, texts: list[str]) -> list[list[str]]:
        return [[term for _, _, term in self.index.tokenize(text)] for text in texts]

    def lexical(self, texts: list[str]) -> Vectors:
        """Returns BM25 scores ``(len(texts), documents)``."""
        return np.array([self.bm25.get_scores(tokens) for tokens in self._tokens(texts)], dtype=np.float64)


def nearest(scores: Vectors, own: Numbers | None = None, count: int = 10) -> Numbers:
    """Returns, for each row, the ``count`` columns with the highest scores, best first.

    If ``own`` is given, column ``own[i]`` is left out of row i.
    """
    if own is not None:
        scores = scores.copy()
        scores[np.arange(len(scores)), own] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def judged(collection: Collection, scores: Vectors) -> dict[str, list[float]]:
    """Returns nDCG@10 and recall@100 of each query, x 100, from the scores of all documents."""
    from cse.evaluation.retrieval import DEPTH, ndcg, recall

    found: dict[str, list[float]] = {"ndcg": [], "recall": []}
    for ranked, relevant in zip(nearest(scores, count=DEPTH), collection.judgements, strict=True):
        ids = [collection.ids[number] for number in ranked]
        found["ndcg"].append(round(100 * ndcg(ids, relevant), 3))
        found["recall"].append(round(100 * recall(ids, relevant), 3))
    return found
