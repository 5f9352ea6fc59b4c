"""Simulates cse compare --judged: how many queries and judgements find a difference of 3 points of nDCG@10.

Published judgements take the place of the person.

    python benches/label.py --data DIR [--model minilm] [--points 3] [--draws 1000]   # prints a Markdown table

DIR holds collections in the layout of BEIR, such as cranfield and cacm, each with the judgements of its publishers. Two
pairs of rankings with a true difference of 3 points are made for each collection:

- *noise*: the new ranking is that of the model; the old one is the cosine plus normal noise, a function of query
  and document, whose size gives the difference;
- *BM25*: the old ranking is that of the model; the new one adds a multiple of the BM25 score (divided by its maximum
  for the query) to the cosine, and the multiple gives the difference.

The true difference is that of nDCG@10 over all queries and all published judgements. For the simulation, queries are
drawn with replacement. The first ten documents of both rankings are judged as the publishers judged them; a document
that they did not judge is not relevant. Queries without a relevant document in the pool are left out, as there.
The table shows the smallest number of drawn queries with which the 95 % interval of a bootstrap over queries lies above
0 in 80 % of the draws, the number of judgements that these queries take, and the number of queries that
``queries_needed`` estimates from the difference and the spread over all queries. Hours are at 10 seconds per judgement.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Rankings = list[list[str]]
Pair = Callable[[float], tuple[Rankings, Rankings]]
DEPTH = 10
SECONDS = 10
RESAMPLES = 500


class Collection:
    """Cosines and BM25 scores of all documents for the queries of a collection, and their judgements."""

    def __init__(self, folder: Path, model: str) -> None:
        import bm25s

        from cse import Encoder, InputError
        from cse.evaluation.retrieval import Retrieval, RetrievalOptions
        from cse.search.vectors import unit

        data = Retrieval(RetrievalOptions(), str(folder))
        if not data.queries:
            raise InputError(f"{folder}: no queries")
        encoder = Encoder(model, device="cpu")
        self.ids = sorted(data.documents, reverse=True)  # documents with equal scores are ranked by descending id
        texts, queries = [data.documents[each] for each in self.ids], list(data.queries.values())
        self.judgements = list(data.judgements.values())
        self.cosines: Floats = (unit(encoder.encode(queries)) @ unit(encoder.encode(texts)).T).astype(np.float64)
        index = bm25s.BM25()
        index.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
        words = bm25s.tokenize(queries, show_progress=False, return_ids=False)
        self.bm25: Floats = np.stack([index.get_scores(each) for each in words]).astype(np.float64)
        self.bm25 /= np.maximum(self.bm25.max(axis=1, keepdims=True), 1e-9)
        self.noise: Floats = np.random.default_rng(0).standard_normal(self.cosines.shape)
        self.plain = self.rankings(self.cosines)

    def rankings(self, scores: Floats) -> Rankings:
        """Returns the ids of the first documents for each query."""
        order = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        return [[self.ids[place] for place in row] for row in order.tolist()]

    def scores(self, rankings: Rankings) -> Floats:
        """Returns the true nDCG@10 x 100 of each query."""
        from cse.evaluation.retrieval import ndcg

        return np.array([100 * ndcg(*pair) for pair in zip(rankings, self.judgements, strict=True)])

    def judged(self, old: Rankings, new: Rankings) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Returns the difference of each query by the judgements of its pool (NaN: nothing relevant), and its size."""
        from cse.evaluation.retrieval import ndcg

        differences, sizes = [], []
        for before, after, relevant in zip(old, new, self.judgements, strict=True):
            pool = {*before, *after}
            known = {document: int(relevant.get(document, 0) > 0) for document in pool}
            found = 100 * (ndcg(after, known) - ndcg(before, known)) if any(known.values()) else np.nan
            differences.append(found)
            sizes.append(len(pool))
        return np.array(differences), np.array(sizes)


def solved(difference: Callable[[float], float], points: float, high: float) -> float | None:
    """Returns the step of a bisection in (0, high] with a difference nearest to ``points``; None: 0.3 points off."""
    low, best = 0.0, (np.inf, 0.0)
    for _ in range(14):
        middle = (low + high) / 2
        found = difference(middle)
        best = min(best, (abs(found - points), middle))
        low, high = (middle, high) if found < points else (low, middle)
    return best[1] if best[0] < 0.3 else None


def found_share(differences: Floats, queries: int, draws: int) -> float:
    """Returns the share of draws of some queries whose bootstrap interval of the mean lies above 0."""
    generator = np.random.default_rng(queries)
    found = 0
    for _ in range(draws):
        drawn = differences[generator.integers(0, len(differences), queries)]
        drawn = drawn[~np.isnan(drawn)]
        if len(drawn) < 2:
            continue
        means = drawn[generator.integers(0, len(drawn), (RESAMPLES, len(drawn)))].mean(axis=1)
        found += bool(np.quantile(means, 0.025) > 0)
    return found / draws


def smallest(differences: Floats, start: int, draws: int) -> int:
    """Returns the smallest number of queries that finds the difference in 80 % of the draws, up to 3 % of it."""
    low, high = 1, start
    while found_share(differences, high, draws) < 0.8:
        low, high = high, high * 3 // 2
    while high - low > max(1, low // 33):
        middle = (low + high) // 2
        low, high = (low, middle) if found_share(differences, middle, draws) >= 0.8 else (middle, high)
    return high


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Folder with a subfolder for each collection.")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--points", type=float, default=3.0)
    parser.add_argument("--draws", type=int, default=1000)
    options = parser.parse_args()
    from cse.evaluation.significance import queries_needed

    print("| collection | pair | true difference | by the pools | spread | queries | judgements | hours | estimate |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for folder in sorted(each for each in options.data.iterdir() if (each / "corpus.jsonl").exists()):
        data = Collection(folder, options.model)
        for name in ("noise", "BM25"):

            def pair(x: float, name: str = name, data: Collection = data) -> tuple[Rankings, Rankings]:
                if name == "noise":
                    return data.rankings(data.cosines + x * data.noise), data.plain
                return data.plain, data.rankings(data.cosines + x * data.bm25)

            def difference(x: float, pair: Pair = pair, data: Collection = data) -> float:
                old, new = (data.scores(each) for each in pair(x))
                return float((new - old).mean())

            size = solved(difference, options.points, 0.2)
            if size is None:
                print(f"| {folder.name} | {name} | none of {options.points:g} points | | | | | | |", flush=True)
                continue
            values, sizes = data.judged(*pair(size))
            scored = values[~np.isnan(values)]
            spread = float(scored.std(ddof=1))
            estimate = round(queries_needed(float(scored.mean()), spread) * len(values) / len(scored))
            queries = smallest(values, estimate, options.draws)
            judgements = round(queries * float(sizes.mean()))
            cells = [folder.name, name, f"{difference(size):.2f}", f"{scored.mean():.2f}", f"{spread:.1f}"]
            cells += [f"{queries:,}", f"{judgements:,}", f"{judgements * SECONDS / 3600:.1f}", f"{estimate:,}"]
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
