"""Rankings of the documents of retrieval collections by the untrained all-MiniLM-L6-v2, BM25 and their combinations.

    python benches/domain/rankings.py COLLECTION ... --cache DIR [--check COLLECTION ...] [--json FILE]

A collection is a folder in the layout of BEIR (``convert_collections.py`` writes some). The settings are chosen on the
collections that are named first, and the collections of ``--check`` are scored only with the settings of the table.
The encoded texts are stored in ``--cache``, about 1 kB a token; with them, a rerun takes seconds to a minute each.
Delete ``judged.json`` there after a change of a definition.

The program prints the changes of nDCG@10 and recall@100 from the dense ranking, with 95 % intervals of a paired
bootstrap over queries, and then what each family of settings gains on a collection that took no part in the choice
(the mean of the others is largest, and none of them is below 0).

Definitions. ``z(s)``: the scores of a query minus their mean over all documents, divided by their standard deviation.
Fusion: ``(1 - w) z(dense) + w z(BM25)``. Feedback: ``q' = normalise((1 - share) q + share mean)``, where ``mean`` is
that of the vectors of the N documents best in a fusion whose weight may differ from w (0: the dense ranking); q' then
takes the place of q. Smoothing: ``d' = normalise((1 - share) d + share mean)``, where ``mean`` is that of the k other
documents best in ``.5 z(dense) + .5 z(BM25)`` with the document as query. MaxSim: the function ``max_sim``; it ranks
only the first 100 documents again, with scores standardised over these 100. One vector: smoothing and fusion, with the
products of vectors of latent semantic analysis in place of BM25, which they approximate; ``cse encode --hybrid`` writes
such vectors.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cse.evaluation.significance import RESAMPLES, Difference, summarise
from domain_scores import Collection

Array = npt.NDArray[np.float64]

Setting = tuple[int, float, float, int, float, float]
"""Smoothing (k, share), feedback (weight of BM25 in the ranking it is from, N, share), and the weight of BM25."""

K1, B = 1.5, 0.75
WEIGHTS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
# The settings of the rows of the table.
W, N, SHARE, SMOOTHING = 0.2, 5, 0.3, (5, 0.3)


@dataclass
class Encoded:
    """Vectors of n texts: one per text, and one per token.

    Attributes:
        vectors: ``(n, D)`` float64, of unit length.
        states: ``(tokens, D)`` float16, the last hidden states of all tokens but the first and the last of each text,
            which are special, scaled to unit length.
        ids: ``(tokens,)``, their numbers in the vocabulary of the model.
        starts: ``(n + 1,)``; the tokens of text i are ``starts[i]`` to ``starts[i + 1]``.
    """

    vectors: Array
    states: npt.NDArray[np.float16]
    ids: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]


def encode(encoder: Any, texts: Sequence[str]) -> Encoded:
    """Encodes texts with a ``SentenceEncoder`` that averages the states of its tokens."""
    import torch

    from cse.models.tokens import pad, token_lists

    tokens = token_lists(encoder.tokenizer, texts, encoder.source.max_length)
    sizes = np.array([len(ids) - 2 for ids in tokens["input_ids"]])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    width = encoder.embedding_dim
    vectors, states = np.empty((len(texts), width)), np.empty((starts[-1], width), np.float16)
    order = np.argsort(-sizes, kind="stable")
    with torch.inference_mode():
        for first in range(0, len(texts), 32):
            rows = order[first : first + 32].tolist()
            batch = pad(encoder.tokenizer, tokens, rows)
            hidden = encoder.backbone(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            mean = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
            vectors[rows] = mean.double().numpy()
            unit = torch.nn.functional.normalize(hidden, dim=-1).half().numpy()
            for number, row in enumerate(rows):
                states[starts[row] : starts[row + 1]] = unit[number, 1 : 1 + sizes[row]]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids = np.array([each for row in tokens["input_ids"] for each in row[1:-1]], dtype=np.int64)
    return Encoded(vectors, states, ids, starts)


def encoded(collection: Collection, store: Path, model: str) -> tuple[Encoded, Encoded]:
    """Returns the documents and queries of a collection, encoded by a model, from ``store`` if they are there."""
    folder = store / f"{collection.name}-{collection.hash}"
    fields = ("vectors", "states", "ids", "starts")
    if not folder.exists():
        import cse

        encoder = cse.Encoder(model, device="cpu").model
        fresh = folder.with_suffix(".tmp")
        fresh.mkdir(parents=True, exist_ok=True)
        for role, texts in (("documents", collection.documents), ("queries", collection.queries)):
            found = encode(encoder, texts)
            for field in fields:
                np.save(fresh / f"{role}-{field}.npy", getattr(found, field))
        fresh.rename(folder)
    documents, queries = (
        Encoded(
            *(np.load(folder / f"{role}-{field}.npy", mmap_mode="r" if field == "states" else None) for field in fields)
        )
        for role in ("documents", "queries")
    )
    return documents, queries


class Words:
    """BM25 of documents, as ``cse.search.bm25`` computes it, but as a sparse matrix in float64.

    Args:
        documents: n texts.
        stop: Terms that are left out.
    """

    def __init__(self, documents: Sequence[str], stop: frozenset[str]) -> None:
        from scipy.sparse import diags

        self.stop = stop
        self.vocabulary: dict[str, int] = {}
        for text in documents:
            for term in self.terms(text):
                self.vocabulary.setdefault(term, len(self.vocabulary))
        self.counts = self.counted(documents)
        n, lengths = len(documents), np.asarray(self.counts.sum(1)).ravel()
        found = np.bincount(self.counts.indices, minlength=len(self.vocabulary))
        self.idf = np.log(1 + (n - found + 0.5) / (found + 0.5))
        saturated = self.counts.tocoo(copy=True)
        norm = K1 * (1 - B + B * lengths / lengths.mean())
        saturated.data = saturated.data / (saturated.data + norm[saturated.row])
        self.saturated = saturated.tocsr()
        self.weights = (self.saturated @ diags(self.idf)).tocsr()

    def terms(self, text: str) -> list[str]:
        """Returns the terms of a text without stop words."""
        from cse.search.terms import Terms

        return [term for term in Terms()([text])[0] if term not in self.stop]

    def counted(self, texts: Sequence[str]) -> Any:
        """Returns the numbers of occurrences of the terms, ``(len(texts), terms)``."""
        from scipy.sparse import csr_matrix

        rows, columns = [], []
        for row, text in enumerate(texts):
            known = [self.vocabulary[term] for term in self.terms(text) if term in self.vocabulary]
            rows += [row] * len(known)
            columns += known
        shape = (len(texts), len(self.vocabulary))
        found = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=shape)
        found.sum_duplicates()
        return found

    def scores(self, texts: Sequence[str]) -> Array:
        """Returns the scores of all documents, ``(len(texts), n)``."""
        return np.asarray((self.counted(texts) @ self.weights.T).todense())


def z(scores: Array) -> Array:
    """Returns the scores of each row minus their mean, divided by their standard deviation; 0 if all are equal."""
    centred = scores - scores.mean(axis=-1, keepdims=True)
    deviation = centred.std(axis=-1, keepdims=True)
    result: Array = centred / np.where(deviation > 0, deviation, 1)
    return result


def unit(vectors: Array) -> Array:
    """Returns the vectors, scaled to unit length; zero vectors stay as they are."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)


def best(scores: Array, count: int) -> npt.NDArray[np.int64]:
    """Returns the columns of the ``count`` largest scores of each row, best first; ties are in order of columns."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :count]


def max_sim(queries: Encoded, documents: Encoded) -> Array:
    """Returns MaxSim of all pairs, ``(queries, documents)``.

    It is the mean over the tokens of the query of the largest cosine with a token of the document, weighted by the
    tokens' inverse document frequency.
    """
    n = len(documents.starts) - 1
    owners = np.repeat(np.arange(n), np.diff(documents.starts))
    found = np.zeros(documents.ids.max() + 1 if len(documents.ids) else 1)
    pairs = np.unique(np.stack([owners, documents.ids]), axis=1)
    np.add.at(found, pairs[1], 1)
    known = found[np.minimum(queries.ids, len(found) - 1)] * (queries.ids < len(found))
    idf = np.log(1 + (n - known + 0.5) / (known + 0.5))
    result = np.zeros((len(queries.starts) - 1, n))
    tokens = queries.states.astype(np.float32)
    lengths = np.diff(documents.starts)
    for start in range(0, n, 100):
        stop = min(start + 100, n)
        filled = start + np.flatnonzero(lengths[start:stop])
        first = documents.starts[start]
        block = documents.states[first : documents.starts[stop]].astype(np.float32)
        cosines = block @ tokens.T  # in this order, because ``reduceat`` is much faster along the first axis
        largest = np.maximum.reduceat(cosines, documents.starts[filled] - first, axis=0).T * idf[:, None]
        for row in range(len(result)):
            mine = slice(queries.starts[row], queries.starts[row + 1])
            result[row, filled] = largest[mine].sum(0) / max(idf[mine].sum(), 1e-9)
    return result


class Trial:
    """A collection, and what its rankings are computed from.

    Args:
        folder: The collection.
        store: Folder of the stored arrays; each model needs its own.
        model: Name or folder of the model.
    """

    def __init__(self, folder: Path, store: Path, model: str = "minilm") -> None:
        from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

        from cse.search.terms import stop_words

        self.collection = Collection(folder)
        self.name = self.collection.name
        self.documents, self.queries = encoded(self.collection, store, model)
        self.folder = store / f"{self.name}-{self.collection.hash}"
        place = {key: number for number, key in enumerate(self.collection.ids)}
        judgements = self.collection.judgements
        self.gains = np.zeros((len(judgements), len(place)))
        for row, relevant in enumerate(judgements):
            for key, value in relevant.items():
                if key in place:
                    self.gains[row, place[key]] = max(value, 0)
        self.ideal = np.array([dcg(np.sort([max(v, 0.0) for v in each.values()])[::-1]) for each in judgements])
        self.wanted = np.array([sum(v > 0 for v in each.values()) for each in judgements])
        self.dense = self.queries.vectors @ self.documents.vectors.T
        # "english" is the list of cse search --hybrid in English, "long" that of scikit-learn.
        lists = {"none": (), "long": ENGLISH_STOP_WORDS, "english": stop_words("english")}
        self.words = {name: Words(self.collection.documents, frozenset(each)) for name, each in lists.items()}
        self.bm25 = {name: each.scores(self.collection.queries) for name, each in self.words.items()}
        self.lexical = z(self.bm25["english"])
        self._judged: dict[str, list[list[float]]] | None = None
        self._smoothed: dict[tuple[int, float], tuple[Array, Array]] = {}

    def stored(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns an array from the cache, where the first call stores it."""
        path = self.folder / f"{name}.npy"
        if not path.exists():
            np.save(path, make())
        return np.load(path)

    def neighbours(self) -> npt.NDArray[np.int64]:
        """Returns the 10 nearest other documents of each document, best first, as smoothing defines them."""

        def make() -> npt.NDArray[np.int64]:
            vectors, texts, found = self.documents.vectors, self.collection.documents, []
            for start in range(0, len(vectors), 1000):
                rows = np.arange(start, min(start + 1000, len(vectors)))
                lexical = self.words["english"].scores(texts[start : start + 1000])
                scores = 0.5 * z(vectors[rows] @ vectors.T) + 0.5 * z(lexical)
                scores[np.arange(len(rows)), rows] = -np.inf
                found.append(best(scores, 10))
            return np.concatenate(found)

        near: npt.NDArray[np.int64] = self.stored("near-0.5-own", make)
        return near

    def smoothed(self, k: int, share: float) -> tuple[Array, Array]:
        """Returns the smoothed vectors of the documents, and their standardised scores for the queries."""
        if (k, share) not in self._smoothed:
            vectors = self.documents.vectors
            if k:
                vectors = unit((1 - share) * vectors + share * vectors[self.neighbours()[:, :k]].mean(1))
            self._smoothed[k, share] = vectors, z(self.queries.vectors @ vectors.T)
        return self._smoothed[k, share]

    def latent(self, dimensions: int) -> tuple[Array, Array]:
        """Returns the LSA vectors of the documents and of the queries."""

        def make() -> Array:
            words, queries = self.words["english"], self.collection.queries
            matrix = words.saturated.multiply(np.sqrt(words.idf)[None]).tocsr()
            values, left = np.linalg.eigh((matrix @ matrix.T).toarray())
            values, left = values[::-1][:2048], left[:, ::-1][:, :2048]
            values, left = values[values > 1e-9 * values[0]], left[:, values > 1e-9 * values[0]]
            asked = words.counted(queries).multiply(np.sqrt(words.idf)[None]).tocsr() @ matrix.T
            return np.concatenate([left * np.sqrt(values), asked @ left / np.sqrt(values)])

        vectors = self.stored("lsa-own", make)[:, :dimensions]
        n = len(self.documents.vectors)
        return vectors[:n], vectors[n:]

    def judge(self, name: str, scores: Callable[[], Array]) -> list[Array]:
        """Returns nDCG@10 and recall@100 of each query, x 100; they are stored under the name."""
        path = self.folder / "judged.json"
        if self._judged is None:
            self._judged = json.loads(path.read_text()) if path.exists() else {}
        if name not in self._judged:
            self._judged[name] = [each.tolist() for each in self.measured(scores())]
            path.write_text(json.dumps(self._judged))
        return [np.array(each) for each in self._judged[name]]

    def measured(self, scores: Array) -> list[Array]:
        """Returns nDCG@10 and recall@100 of each query, x 100."""
        order = best(scores, 100)
        found = np.take_along_axis(self.gains, order, 1)
        ideal = np.where(self.ideal > 0, self.ideal, 1)
        return [100 * dcg(found) / ideal, 100 * (found > 0).sum(1) / self.wanted]


def dcg(gains: Array) -> Any:
    """Returns the discounted cumulative gain of the first ten."""
    gains = gains[..., :10]
    return (gains / np.log2(2 + np.arange(gains.shape[-1]))).sum(-1)


def fused(dense: Array, lexical: Array, w: float) -> Array:
    """Returns the fusion of two rankings with weight w for the second."""
    return (1 - w) * z(dense) + w * z(lexical)


def reciprocal(first: Array, second: Array, depth: int = 100) -> Array:
    """Returns the scores of reciprocal rank fusion of the first ``depth`` documents of each ranking."""
    total = np.zeros_like(first)
    for scores in (first, second):
        order = best(scores, depth)
        values = np.broadcast_to(1 / (61 + np.arange(order.shape[1])), order.shape)
        ranked = np.zeros_like(first)
        np.put_along_axis(ranked, order, values, 1)
        total += np.where(scores > 0, ranked, 0) if scores is second else ranked
    return total


def searched(trial: Trial, setting: Setting, w: float | Array | None = None) -> Array:
    """Returns the scores of a setting; ``w``, one weight for each query ``(q, 1)``, replaces its weights."""
    k, smoothing, source, count, share, weight = setting
    first: float | Array = source if w is None else w
    w = weight if w is None else w
    documents, dense = trial.smoothed(k, smoothing)
    queries, lexical = trial.queries.vectors, trial.lexical
    if count:
        chosen = best((1 - first) * dense + first * lexical, count)
        dense = z(unit((1 - share) * queries + share * documents[chosen].mean(1)) @ documents.T)
    total: Array = (1 - w) * dense + w * lexical
    return total


def reranked(trial: Trial, scores: Array, share: float) -> Array:
    """Returns scores by which the first 100 documents are ranked by MaxSim to the given share."""
    near = best(scores, 100)
    tokens = trial.stored("maxsim", lambda: max_sim(trial.queries, trial.documents))
    mixed = [(1 - share, scores), (share, tokens)]
    values = sum(part * z(np.take_along_axis(each, near, 1)) for part, each in mixed)
    result: Array = scores - scores.max() - 1e6
    np.put_along_axis(result, near, values, 1)
    return result


def rows(trial: Trial) -> Iterator[tuple[str, Callable[[], Array]]]:
    """Yields the rows of the table: name, and function that computes the scores."""
    yield "dense", lambda: trial.dense
    for name, each in trial.bm25.items():
        yield f"BM25 alone, stop words {name}", partial(np.asarray, each)
        yield f"reciprocal ranks, stop words {name}", partial(reciprocal, trial.dense, each)
        yield f"w 0.2, stop words {name}", partial(fused, trial.dense, each, 0.2)

    def mixed(setting: Setting, share: float) -> Array:
        return reranked(trial, searched(trial, setting), share)

    def weighted(sign: str, low: float, slope: float) -> Array:
        return searched(trial, smooth, np.clip(low + slope * signs(trial)[sign], 0.05, 0.5))

    raw, smooth = ((k, share, W, N, SHARE, W) for k, share in ((0, 0.0), SMOOTHING))
    settings: dict[str, Setting] = {f"w {w}": (0, 0.0, 0.0, 0, 0.0, w) for w in WEIGHTS}
    settings["feedback from dense, w 0.2"] = (0, 0.0, 0.0, N, SHARE, W)
    settings["feedback, w 0.2"] = raw
    settings["feedback of three, share 0.5, from w 0.5, w 0.2"] = (0, 0.0, 0.5, 3, 0.5, W)
    settings["smoothed"] = (*SMOOTHING, 0.0, 0, 0.0, 0.0)
    settings["smoothed, w 0.2"] = (*SMOOTHING, 0.0, 0, 0.0, W)
    settings["smoothed, feedback, w 0.2"] = smooth
    for name, setting in settings.items():
        yield name, partial(searched, trial, setting)
    for share in (0.3, 0.5):
        yield f"dense, MaxSim {share}", partial(reranked, trial, trial.dense, share)
        for name, setting in (("feedback, w 0.2", raw), ("smoothed, feedback, w 0.2", smooth)):
            yield f"{name}, MaxSim {share}", partial(mixed, setting, share)
    for low, slope in ((0.1, 0.2), (0.1, 0.4), (0.2, 0.2)):
        yield f"smoothed, feedback, w {low} + {slope} overlap", partial(weighted, "overlap", low, slope)
    yield "smoothed, feedback, w 0.1 x ratio of peaks", partial(weighted, "peaks", 0.0, 0.1)
    yield "smoothed, feedback, w 0.1 + 0.2 x length", partial(weighted, "length", 0.1, 0.2)
    if len(trial.collection.ids) <= 5000:  # the decomposition takes minutes beyond
        for size in (384, 1024, 2048):
            yield f"one vector, {size} dimensions of LSA", partial(one_vector, trial, size)


def signs(trial: Trial) -> dict[str, Array]:
    """Returns figures that are known without judgements, each ``(q, 1)``.

    They are the share of the first ten documents that are in both rankings, the ratio of the largest standardised
    scores of BM25 and of the dense ranking, and the median number of words of a document, over 150, at most 1.
    """
    top = [best(each, 10) for each in (trial.dense, trial.lexical)]
    overlap = np.array([[len(np.intersect1d(a, b)) / 10] for a, b in zip(*top, strict=True)])
    peaks = trial.lexical.max(1, keepdims=True) / z(trial.dense).max(1, keepdims=True)
    words = float(np.median([len(text.split()) for text in trial.collection.documents]))
    return {"overlap": overlap, "peaks": peaks, "length": np.full_like(overlap, min(1, words / 150))}


def one_vector(trial: Trial, dimensions: int) -> Array:
    """Returns the inner products of vectors that consist of a dense and a lexical part, up to a constant per query."""
    documents, queries = trial.latent(dimensions)
    return fused(trial.smoothed(*SMOOTHING)[1], queries @ documents.T, W)


def grid() -> Iterator[Setting]:
    """Yields the settings from which one is chosen."""
    for w in WEIGHTS:
        yield (0, 0.0, 0.0, 0, 0.0, w)
    for source, count, share, w in product((0.0, 0.2, 0.5), (1, 2, 3, 5, 10), (0.3, 0.5, 0.8), (0.1, 0.2, 0.3, 0.4)):
        yield (0, 0.0, source, count, share, w)
    for k, smoothing, w in product((3, 5, 10), (0.2, 0.3, 0.5), (0.2, 0.3)):
        yield (k, smoothing, 0.0, 0, 0.0, w)
        for source, count, share in product((0.2, 0.5), (2, 3, 5), (0.3, 0.5)):
            yield (k, smoothing, source, count, share, w)


def choose(gains: dict[Any, Array], others: list[int]) -> Any:
    """Returns the setting with the largest mean over the collections ``others`` of those that harm none of them.

    Args:
        gains: Changes of nDCG@10 of each setting, one for each collection.
        others: Positions of the collections on which the setting is chosen.
    """
    harmless = {key: each for key, each in gains.items() if each[others].min() >= 0} or gains
    return max(harmless, key=lambda key: float(harmless[key][others].mean()))


@lru_cache
def draws(n: int) -> Array:
    """Returns how often each of n queries is in each resample, ``(RESAMPLES, n)``; the draws of ``cse compare``."""
    chosen = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
    return np.array([np.bincount(each, minlength=n) for each in chosen], dtype=np.float64)


def resampled(differences: Array) -> tuple[Difference, Array]:
    """Returns the mean of differences with its interval, and its value in each resample.

    They are those of ``cse.evaluation.significance.resampled_difference``, computed at once for all resamples.
    """
    values = draws(len(differences)) @ differences / len(differences)
    return summarise(float(differences.mean()), values), values


def print_table(names: list[str], found: dict[str, list[list[Array]]]) -> dict[str, Any]:
    """Prints the table of the rows that all collections have; returns its numbers."""
    print(f"| ranking | {' | '.join(names)} | mean | worst | recall@100, mean | worst |")
    print("| --- |" + " ---: |" * (len(names) + 4))
    numbers: dict[str, Any] = {}
    for key, values in found.items():
        if len(values) < len(names) or key == "dense":
            continue
        drawn = [
            [resampled(new - old) for new, old in zip(each, base, strict=True)]
            for each, base in zip(values, found["dense"], strict=True)
        ]
        single = [[(part.mean, part.low, part.high) for part, _ in each] for each in drawn]
        means = []
        for part in (0, 1):
            low, high = np.quantile(np.mean([each[part][1] for each in drawn], axis=0), [0.025, 0.975])
            means.append((float(np.mean([each[part][0] for each in single])), float(low), float(high)))
        cells = [shown(each[0]) for each in single]
        last = [f"{shown(means[part])} | {min(each[part][0] for each in single):+.1f}" for part in (0, 1)]
        print(f"| {key} | {' | '.join([*cells, *last])} |", flush=True)
        numbers[key] = {"ndcg": [each[0] for each in single], "recall": [each[1] for each in single], "means": means}
    return numbers


def shown(interval: tuple[float, float, float]) -> str:
    """Returns a difference with its interval as text."""
    return f"{interval[0]:+.1f} [{interval[1]:+.1f}, {interval[2]:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", type=Path, nargs="+", help="collections on which settings are chosen")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--check", type=Path, nargs="*", default=[], help="collections that only confirm")
    parser.add_argument("--json", type=Path, help="file of the results")
    options = parser.parse_args()
    report: dict[str, Any] = {}
    gains: dict[Setting, list[float]] = {}
    recalls: dict[Setting, list[float]] = {}
    for title, folders in (("collections", options.collections), ("check", options.check)):
        names: list[str] = []
        found: dict[str, list[list[Array]]] = {}
        for folder in folders:
            trial = Trial(folder, options.cache)
            names.append(trial.name)
            for key, scores in rows(trial):
                found.setdefault(key, []).append(trial.judge(key, scores))
            if title == "collections":
                for setting in grid():
                    values = trial.judge(str(setting), partial(searched, trial, setting))
                    for kept, new, old in zip((gains, recalls), values, found["dense"][-1], strict=True):
                        kept.setdefault(setting, []).append(float(new.mean() - old.mean()))
            print(f"{trial.name}: {len(trial.collection.ids):,} documents", file=sys.stderr)
        if names:
            means = [[float(part.mean()) for part in each] for each in found["dense"]]
            dense = rounded(dict(zip(names, means, strict=True)))
            print(f"dense, nDCG@10 and recall@100: {dense}\n")
            report[title] = {"names": names, "dense": dense, "rows": print_table(names, found)}
            print()
    report["left out"] = left_out(report["collections"]["names"], gains, recalls)
    if options.json:
        options.json.write_text(json.dumps(rounded(report), indent=1) + "\n")


def left_out(
    names: list[str], gains: dict[Setting, list[float]], recalls: dict[Setting, list[float]]
) -> dict[str, Any]:
    """Prints what the chosen settings gain on the collection left out of the choice; returns these numbers."""
    families: dict[str, Callable[[Setting], bool]] = {
        "weight": lambda each: not each[0] and not each[3],
        "weight and feedback": lambda each: not each[0],
        "smoothing and weight": lambda each: not each[3],
        "all": lambda each: True,
    }
    result: dict[str, Any] = {}
    print("| family | left out | smoothing k, share | feedback from, N, share | w | nDCG@10 | recall@100 |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: |")
    for family, belongs in families.items():
        own = {key: np.array(each) for key, each in gains.items() if belongs(key)}
        held: list[list[Any]] = []
        for number, name in enumerate([*names, ""]):
            others = [each for each in range(len(names)) if each != number]
            chosen = choose(own, others)
            k, smoothing, source, count, share, w = chosen
            values = [float(np.mean(each[chosen] if not name else each[chosen][number])) for each in (gains, recalls)]
            label = name or "none (mean of all)"
            print(
                f"| {family} | {label} | {k}, {smoothing} | {source}, {count}, {share} | {w} "
                f"| {values[0]:+.1f} | {values[1]:+.1f} |"
            )
            held.append([name, list(chosen), *values])
        middle = np.mean([each[2:] for each in held[:-1]], axis=0)
        label = f"**mean of those left out**, worst {min(each[2] for each in held[:-1]):+.1f}"
        print(f"| {family} | {label} | | | | {middle[0]:+.1f} | {middle[1]:+.1f} |")
        result[family] = held
    return result


def rounded(value: Any) -> Any:
    """Returns nested lists and dictionaries with numbers rounded to three digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return round(value, 3) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
