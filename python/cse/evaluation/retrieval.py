"""Retrieval: ranks a corpus for each query by cosine or dot product, and scores the rankings with relevance judgements.

``--data DIR`` holds files in the format of BEIR (``corpus.jsonl``, ``queries.jsonl``, ``qrels/test.tsv``) or of TREC
collections (``corpus.tsv``, ``queries.tsv``, ``qrels.txt``). The metrics are as in trec_eval, with linear gains and
rankings cut at 100 documents; documents of equal score are ordered by descending id. As in BEIR, a title and a text are
joined by a space, and if queries are documents themselves (ArguAna), their own document is left out of their ranking.

An encoder with a method ``rank_documents``, such as in ``ranking.py``, ranks the documents itself. For rankings
in TREC run files, ``--data`` may be the file of judgements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np

from ..data.pairs import number_of
from ..encoder.base import compared_by, unwrapped
from ..encoder.encoder import Encoder
from ..encoder.passages import Cutter
from ..errors import InputError, shown
from ..io import parse_json
from ..ties import best, comparable
from .base import Encodes, Evaluation, Progress, Report, Sample, check_apart, find_file, needed, read_lines
from .geometry import unit
from .options import RetrievalOptions
from .ranking import FromRun

DEPTH = 100
# Number of documents encoded and ranked at a time, whole or cut into passages.
BLOCK, PASSAGES_BLOCK = 4096, 256
# Number of documents kept beyond ``DEPTH`` until all are ranked, since their scores may be the same as the last one.
SAME = 1000

# Published nDCG@10 x 100 of all-MiniLM-L6-v2 by the numbers of queries and documents of a test set: the files
# results/all-MiniLM-L6-v2/{SciFact,NFCorpus,ArguAna}.json of MTEB (Muennighoff et al. 2023, arXiv:2210.07316).
PUBLISHED = {(300, 5183): ("SciFact", 64.51), (323, 3633): ("NFCorpus", 31.59), (1406, 8674): ("ArguAna", 50.17)}

Relevance = Mapping[str, int]


def ndcg(ranking: Sequence[str], relevant: Relevance, depth: int = 10) -> float:
    """Returns the normalised discounted cumulative gain at ``depth``."""
    gains = [max(relevant.get(document, 0), 0) for document in ranking[:depth]]
    ideal = sorted((max(value, 0) for value in relevant.values()), reverse=True)[:depth]

    def discounted(values: Sequence[int]) -> float:
        return sum(value / math.log2(rank + 1) for rank, value in enumerate(values, 1))

    best = discounted(ideal)
    return discounted(gains) / best if best else 0.0


def _ranks(ranking: Sequence[str], relevant: Relevance, depth: int) -> list[int]:
    """Returns the ranks, from 1, of the relevant documents among the first ``depth``, ascending."""
    return [rank for rank, document in enumerate(ranking[:depth], 1) if relevant.get(document, 0) > 0]


def reciprocal_rank(ranking: Sequence[str], relevant: Relevance, depth: int = 10) -> float:
    """Returns 1 / rank of the first relevant document, or 0 if none is among the first ``depth`` documents."""
    return next((1 / rank for rank in _ranks(ranking, relevant, depth)), 0.0)


def recall(ranking: Sequence[str], relevant: Relevance, depth: int = DEPTH) -> float:
    """Returns the fraction of the relevant documents that rank among the first ``depth``."""
    count = sum(value > 0 for value in relevant.values())
    return len(_ranks(ranking, relevant, depth)) / count if count else 0.0


def average_precision(ranking: Sequence[str], relevant: Relevance, depth: int = DEPTH) -> float:
    """Returns the mean over the relevant documents of the precision at their ranks, 0 for those below ``depth``."""
    count = sum(value > 0 for value in relevant.values())
    precisions = (number / rank for number, rank in enumerate(_ranks(ranking, relevant, depth), 1))
    return sum(precisions) / count if count else 0.0


METRICS: dict[str, Callable[[Sequence[str], Relevance], float]] = {
    "ndcg@10": ndcg,
    "ndcg@100": partial(ndcg, depth=100),
    "map@100": average_precision,
    "mrr@10": reciprocal_rank,
    "recall@10": partial(recall, depth=10),
    "recall@100": recall,
}


def rank_documents(
    encoder: Encodes,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    progress: Progress | None = None,
    depth: int = DEPTH,
    passages: int | None = None,
) -> list[dict[str, float]]:
    """Returns the ``depth`` documents with the highest cosine or dot product for each query and these, best first. If
    ``passages`` is given, a document has the score of its best passage of at most ``passages`` tokens (0: as
    many as the model reads)."""
    cut = None
    if passages is not None:
        whole = unwrapped(encoder)
        if not isinstance(whole, Encoder):
            raise InputError("retrieval.passages: needs a cse.Encoder; omit retrieval.passages for other encoders")
        cut = Cutter(whole, passages or None)
    rows = BLOCK if cut is None else PASSAGES_BLOCK
    ask, answer = (getattr(encoder, f"encode_{role}", encoder.encode) for role in ("query", "document"))
    by_dot = compared_by(encoder)[0] == "dot"

    def points(vectors: Any) -> Any:
        return np.asarray(vectors, dtype=np.float64) if by_dot else unit(vectors)

    wanted = points(ask(list(queries.values()), progress=progress))
    lengths = np.linalg.norm(wanted, axis=1, keepdims=True)
    # Documents of equal score must be in descending order of id, the order of ``ids`` and of the numbers below.
    ids = sorted(documents, reverse=True)
    scores, sizes = np.empty((len(queries), 0)), np.empty((len(queries), 0))
    numbers = np.empty((len(queries), 0), dtype=np.int64)
    for start in range(0, len(ids), rows):
        texts = [documents[key] for key in ids[start : start + rows]]
        parts, firsts = (texts, range(len(texts))) if cut is None else _passages(cut, texts)
        vectors = points(answer(parts, progress=progress if cut is None else None))
        if cut is not None and progress is not None:
            progress(len(texts))
        if not start and len({*texts, *queries.values()}) > 1:
            check_apart(np.vstack([wanted, vectors]))
        found = np.maximum.reduceat(wanted @ vectors.T, firsts, axis=1)
        norms = np.maximum.reduceat(np.linalg.norm(vectors, axis=1), firsts)
        scores, sizes = np.hstack([scores, found]), np.hstack([sizes, lengths * norms])
        numbers = np.hstack([numbers, np.broadcast_to(np.arange(start, start + len(texts)), found.shape)])
        # Those that may be the same as the last one are kept too, and ordered at the end.
        kept = best(scores, depth + SAME, sizes)
        scores, sizes = np.take_along_axis(scores, kept, 1), np.take_along_axis(sizes, kept, 1)
        numbers = np.take_along_axis(numbers, kept, 1)
    merged = comparable(scores, sizes)
    order = np.lexsort((numbers, -merged), axis=-1)[:, :depth]
    merged, numbers = np.take_along_axis(merged, order, 1), np.take_along_axis(numbers, order, 1)
    lines = zip(numbers.tolist(), merged.tolist(), strict=True)
    return [{ids[number]: score for number, score in zip(*line, strict=True)} for line in lines]


def ranker_of(encoder: Encodes) -> Callable[..., list[dict[str, float]]]:
    """Returns the method ``rank_documents`` of an encoder, else the function with this encoder."""
    return getattr(encoder, "rank_documents", None) or partial(rank_documents, encoder)


def _passages(cut: Cutter, texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Returns the passages of all texts, and the position of each text's first passage; a blank text is one passage."""
    parts, firsts = list[str](), list[int]()
    for text, spans in zip(texts, cut(texts), strict=True):
        firsts.append(len(parts))
        parts += [text[start:end] for start, end in spans] or [text]
    return parts, firsts


class Retrieval(Evaluation):
    """Retrieval metrics on a folder of BEIR or TREC files: corpus, queries and relevance judgements."""

    Options = RetrievalOptions
    ranks = True
    summary = "nDCG, MAP, MRR and recall on --data DIR with corpus, queries and qrels (BEIR or TREC files)"

    def __init__(self, options: RetrievalOptions, data: str | None) -> None:
        super().__init__(options, data)
        folder = Path(needed(data, "a folder with corpus, queries and qrels (BEIR or TREC files)"))
        self.only_judged = folder.is_file()
        names = (f"qrels/{options.split}.tsv", "qrels.tsv", "qrels.txt", "qrels")
        self.documents = {} if self.only_judged else read_texts(folder, "corpus")
        judged = read_judgements(folder if self.only_judged else find_file(folder, names))
        queries = dict.fromkeys(judged, "") if self.only_judged else read_texts(folder, "queries")
        if unknown := sorted(judged.keys() - queries):
            raise InputError(f"{folder}: the judgements name the query {unknown[0]!r}, which is not among the queries")
        wanted = {query: {each for each, value in judged[query].items() if value > 0} for query in judged}
        self.judgements = {query: judged[query] for query in judged if wanted[query]}
        named = set[str]().union(*wanted.values())
        self.missing = 0 if self.only_judged else len(named - self.documents.keys())
        if self.missing == len(named):
            raise InputError(f"{folder}: no query has a relevant document in the corpus; do the ids match?")
        self.queries = {query: queries[query] for query in self.judgements}
        self.without_same_id = options.same_id == "drop" or (options.same_id == "auto" and self._are_documents())

    def _are_documents(self) -> bool:
        """Returns whether more than half of the queries are in the text of the document with their id."""
        texts = ((text.split(), self.documents.get(query, "").split()) for query, text in self.queries.items())
        return 2 * sum(bool(own) and " ".join(own) in " ".join(whole) for own, whole in texts) > len(self.queries)

    def work(self) -> int:
        return len(self.queries) + len(self.documents)

    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        if self.only_judged and not isinstance(encoder, FromRun):
            raise InputError(f"--data {self.data}: judgements alone are enough for run:FILE only; name a folder")
        settings = {"depth": DEPTH + self.without_same_id, "passages": self.options.passages}
        ranked = ranker_of(encoder)(self.queries, self.documents, progress, **settings)
        rankings: dict[str, dict[str, float]] = dict(zip(self.queries, ranked, strict=True))
        for query in rankings if self.without_same_id else ():
            kept = [item for item in rankings[query].items() if item[0] != query]
            rankings[query] = dict(kept[:DEPTH])
        pairs = [(list(rankings[query]), relevant) for query, relevant in self.judgements.items()]
        values = {name: np.array([100 * metric(*pair) for pair in pairs]) for name, metric in METRICS.items()}
        row: dict[str, Any] = {"task": str(self.data), "queries": len(self.queries), "documents": len(self.documents)}
        row |= {name: float(scores.mean()) for name, scores in values.items()}
        notes = [f"relevant documents that are not in the corpus: {self.missing:,}"] if self.missing else []
        if self.without_same_id:
            notes.append("the document with the id of the query is left out of each ranking (retrieval.same_id)")
        if known := PUBLISHED.get((len(self.queries), len(self.documents))):
            row["published ndcg@10"] = known[1]
            notes.append(f"published ndcg@10: all-MiniLM-L6-v2 on {known[0]}, by embeddings alone (MTEB)")
        measure = "nDCG@10 of the judged queries"
        samples = [Sample(f"{self.data}: ndcg@10", values["ndcg@10"], unit="queries", measure=measure)]
        return Report([row], notes=notes, rankings=rankings, samples=samples)


class Document(TypedDict):
    """A line of ``corpus.jsonl`` or ``queries.jsonl``; null is a missing text."""

    _id: str | int
    title: NotRequired[str | None]
    text: str | None


# Names of columns in the first line of corpus.tsv, queries.tsv and qrels files.
IDS = {"_id", "id", "docid", "doc_id", "did", "pid", "qid", "query_id", "query-id", "corpus_id", "corpus-id", "topic"}
TEXTS = {"text", "title", "query", "question", "document", "doc", "passage", "body", "content", "contents", "sentence"}


def read_texts(folder: Path, name: str) -> dict[str, str]:
    """Reads ``NAME.jsonl`` or ``NAME.tsv``; returns the texts by id, each preceded by its title, if any."""
    texts: dict[str, str] = {}
    path = find_file(folder, [f"{name}.jsonl", f"{name}.tsv"])
    for number, line in read_lines(path):
        if ".jsonl" in path.suffixes:
            record = parse_json(line, Document, f"{path}: line {number}")
            key, text = str(record["_id"]), f"{record.get('title') or ''} {record['text'] or ''}".strip()
        else:
            key, tab, text = line.partition("\t")
            if not tab:
                raise InputError(f"{path}: line {number} is not an id and a text separated by a tab")
            if not texts and key.strip().lower() in IDS and text.split("\t")[-1].strip().lower() in TEXTS:
                continue
        if key in texts:
            raise InputError(f"{path}: line {number} repeats the id {shown(key)}")
        texts[key] = text
    return texts


def read_judgements(path: Path) -> dict[str, dict[str, int]]:
    """Returns relevance by query and document, from three columns (BEIR) or four (TREC)."""
    qrels: dict[str, dict[str, int]] = {}
    for number, line in read_lines(path):
        fields = [field.strip() for field in line.rstrip().split("\t")]
        if len(fields) not in (3, 4):
            fields = line.split()
        if len(fields) not in (3, 4) or not all((fields[0], *fields[-2:])):
            raise InputError(
                f"{path}: line {number} must have three fields (query, document, relevance) or four (query, iteration, "
                f"document, relevance), separated by tabs or white space, got {len(fields)}"
            )
        relevance, value = fields[-1], number_of(fields[-1])
        first, second = (field.lower().replace(" ", "-") for field in (fields[0], fields[-2]))
        if not qrels and value is None and (first in IDS | TEXTS or second in IDS):
            continue
        if value is None or not value.is_integer():
            raise InputError(f"{path}: line {number}: the relevance must be an integer, got {shown(relevance)}")
        known = qrels.setdefault(fields[0], {}).setdefault(fields[-2], int(value))
        if known != value:
            raise InputError(
                f"{path}: line {number} judges the document {shown(fields[-2])} of query {shown(fields[0])} as "
                f"{int(value)}, an earlier line as {known}; remove one of them"
            )
    return qrels
