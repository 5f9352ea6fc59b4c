"""The scores of benches/domain/domain.py: retrieval scores from judgements, and label-free scores from documents
alone."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]

# Documents that are held out from training for the label-free scores: 5 % of the documents with at least WORDS words,
# but at least 100 documents, and never more than 10 %.
HELD_OUT = (0.05, 100, 0.10)
# SEARCHES queries of each kind (``words`` and ``span``) are made from each held-out document. One query of each kind is
# made from each document of a sample of at most ALL_SEARCHES documents.
SEARCHES = 3
ALL_SEARCHES = 1000
# Number of words in a ``words`` query, and in a ``span`` query.
WORDS = 6
SPAN = 8
# Length of the two lists (of nearest documents, or of top results) whose overlap is computed.
NEIGHBOURS = 10
# Minimum number of words of a sentence to train on.
SENTENCE_WORDS = 4


@dataclass
class Known:
    """Search queries made from documents: ``texts[i]`` was made from document number ``documents[i]``."""

    texts: list[str] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)


class Collection:
    """A collection (documents, queries, judgements), and data derived from it for scoring, which all runs share.

    Args:
        folder: A folder in the format of ``cse eval --suite retrieval``.
    """

    def __init__(self, folder: Path) -> None:
        from cse.evaluation.retrieval import Retrieval, RetrievalOptions

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
        self.sample: Numbers = np.sort(generator.permutation(filled)[:ALL_SEARCHES])

    def rows(self, form: str) -> list[str]:
        """Returns the rows to train on: the documents that are not held out, or their sentences of at least 4 words."""
        kept = np.setdiff1d(np.arange(len(self.documents)), self.held_out).tolist()
        texts = [self.documents[number] for number in kept if self.documents[number].strip()]
        if form == "documents":
            return texts
        sentences = [each for text in texts for each in re.split(r"(?<=[.!?])\s+", text)]
        return [each for each in sentences if len(each.split()) >= SENTENCE_WORDS]

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

    @cached_property
    def known(self) -> dict[str, Known]:
        """Queries by kind, such as ``held words`` or ``all span``.

        A ``words`` query consists of words of a document, drawn with probabilities proportional to TF-IDF. A ``span``
        query consists of consecutive words around one of the drawn words. ``held`` queries come from held-out
        documents, and ``all`` queries from a sample of all documents.
        """
        score = dict(zip(self.index.terms, self.index.idf, strict=True))
        found: dict[str, Known] = {}
        for place, rows, times in (("held", self.held_out, SEARCHES), ("all", self.sample, 1)):
            words, spans = Known(), Known()
            for row in np.repeat(rows, times).tolist():
                generator = np.random.default_rng([len(words.texts), row])
                text = self.documents[row]
                terms = self.index.tokenize(text)
                weights = np.array([max(score[term], 1e-9) for _, _, term in terms])
                chosen = generator.choice(len(terms), min(WORDS, len(terms)), replace=False, p=weights / weights.sum())
                words.texts.append(" ".join(text[terms[n][0] : terms[n][1]] for n in chosen))
                start = max(0, min(int(chosen[0]) - SPAN // 2, len(terms) - SPAN))
                last = min(start + SPAN, len(terms)) - 1
                spans.texts.append(text[terms[start][0] : terms[last][1]])
                words.documents.append(row)
                spans.documents.append(row)
            found |= {f"{place} words": words, f"{place} span": spans}
        return found

    @cached_property
    def lexical_neighbours(self) -> Numbers:
        """The ten nearest documents of each sampled document by BM25, without the document itself."""
        return nearest(self.lexical([self.documents[row] for row in self.sample]), self.sample)

    @cached_property
    def lexical_found(self) -> Numbers:
        """The top ten documents by BM25 for each query of kind ``held words``."""
        return nearest(self.lexical(self.known["held words"].texts))


def nearest(scores: Vectors, own: Numbers | None = None, count: int = NEIGHBOURS) -> Numbers:
    """Returns, for each row, the ``count`` columns with the highest scores, best first.

    If ``own`` is given, column ``own[i]`` is left out of row i.
    """
    if own is not None:
        scores = scores.copy()
        scores[np.arange(len(scores)), own] = -np.inf
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def overlap(first: Numbers, second: Numbers) -> float:
    """Returns the fraction of values in row i of ``first`` that are also in row i of ``second``, averaged over i."""
    return float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in zip(first, second, strict=True)]))


def reciprocal_ranks(scores: Vectors, own: list[int]) -> Vectors:
    """Returns 1 / rank of column ``own[i]`` in row i; columns with an equal score are ranked before it."""
    true = scores[np.arange(len(scores)), own][:, None]
    ranks: Vectors = 1.0 / (scores >= true - 1e-9).sum(1)
    return ranks


@dataclass
class Embedded:
    """Unit-length embeddings of a collection, computed by one encoder."""

    documents: Vectors
    queries: Vectors
    known: dict[str, Vectors]
    halves: Vectors
    """The first halves of the held-out documents, then their second halves."""

    def arrays(self) -> dict[str, Any]:
        """Returns the arrays by name; ``Embedded.of`` converts them back."""
        named = {"documents": self.documents, "queries": self.queries, "halves": self.halves}
        return {**named, **{f"known {kind}": each for kind, each in self.known.items()}}

    @classmethod
    def of(cls, arrays: dict[str, Vectors]) -> Embedded:
        """Returns the embeddings whose ``arrays()`` are given."""
        known = {name.removeprefix("known "): each for name, each in arrays.items() if name.startswith("known ")}
        return cls(arrays["documents"], arrays["queries"], known, arrays["halves"])


def embed(encoder: Any, collection: Collection) -> Embedded:
    """Encodes the documents, the queries, the queries made from documents, and the halves of held-out documents."""
    from cse.data.words import cut_in_two
    from cse.evaluation.geometry import unit

    halves = [cut_in_two(collection.documents[row]) for row in collection.held_out]
    return Embedded(
        unit(encoder.encode(collection.documents)),
        unit(encoder.encode(collection.queries)),
        {kind: unit(encoder.encode(each.texts)) for kind, each in collection.known.items()},
        unit(encoder.encode([first for first, _ in halves] + [second for _, second in halves])),
    )


def judged(collection: Collection, scores: Vectors) -> dict[str, list[float]]:
    """Returns nDCG@10 and recall@100 of each query, x 100, from the scores of all documents."""
    from cse.evaluation.retrieval import DEPTH, ndcg, recall

    found: dict[str, list[float]] = {"ndcg": [], "recall": []}
    for ranked, relevant in zip(nearest(scores, count=DEPTH), collection.judgements, strict=True):
        ids = [collection.ids[number] for number in ranked]
        found["ndcg"].append(round(100 * ndcg(ids, relevant), 3))
        found["recall"].append(round(100 * recall(ids, relevant), 3))
    return found


def label_free(collection: Collection, new: Embedded, base: Embedded) -> dict[str, float]:
    """Returns the label-free scores of the encoder that computed ``new``; some compare it with the base model."""
    from cse.evaluation.geometry import effective_rank, half_ranks, mean_cosine, uniformity

    found: dict[str, float] = {}
    for kind, each in collection.known.items():
        cosines = new.known[kind] @ new.documents.T
        found[f"known {kind}"] = float(reciprocal_ranks(cosines, each.documents).mean())
        old = base.known[kind] @ base.documents.T
        found[f"base's results, {kind}"] = overlap(nearest(old), nearest(cosines))
        if kind == "held words":
            found["BM25's results, held words"] = overlap(collection.lexical_found, nearest(cosines))
    rows = collection.sample
    own = nearest(new.documents[rows] @ new.documents.T, rows)
    found["BM25's neighbours"] = overlap(collection.lexical_neighbours, own)
    found["base's neighbours"] = overlap(nearest(base.documents[rows] @ base.documents.T, rows), own)
    forward, backward = half_ranks(*np.split(new.halves, 2))
    found["halves"] = float(np.mean((1 / forward + 1 / backward) / 2))
    found["uniformity"] = uniformity(new.documents)
    found["effective rank"] = effective_rank(new.documents)
    found["mean cosine"] = mean_cosine(new.documents)
    found["cosine with base"] = float((new.documents * base.documents).sum(1).mean())
    return {name: round(value, 6) for name, value in found.items()}
