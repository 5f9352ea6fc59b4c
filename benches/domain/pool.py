"""Chooses the constants of ``cse search --hybrid`` on some collections, and measures it on collections left out.

    python benches/domain/pool.py COLLECTION ... --cache DIR [--model MODEL] [--most 400] [--json FILE]

A collection is a folder in the layout of BEIR. The vectors of documents and queries are stored in ``--cache``. For each
collection, the program prints nDCG@10 x 100 of the vectors and of BM25, and the change from the vectors by the pool
with the constants of ``cse.search.pool``, with its 95 % interval. ``SearchIndex.search`` itself computes it and
must equal the program's own formulas.

Then, for each collection, the constants are chosen on the others: those with the largest mean change among the settings
whose worst change is at least ``WORST``. "Regret" is the difference from the best setting for a collection, known only
afterwards. Collections that the model can hardly read, or of which it reads less than half, are another kind, whose
constants are chosen in the same way on such collections alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cse.encoder.vocabulary import readability, share_read
from cse.evaluation.significance import summarise
from cse.search import pool as hybrid
from cse.search.bm25 import Bm25, terms_for
from cse.search.index import LONG_SAMPLE
from cse.search.pool import LEAST_READ
from cse.ties import best
from domain_scores import Collection

Array = npt.NDArray[np.float64]
WORST = -1.0
GRID = list(product((1.0, 1.5, 2.0), (0.5, 0.75, 1.0), (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9), (0.3, 0.5, 1.0)))
RESAMPLES = 2000


class Scored:
    """A collection with the scores of both rankings for at most ``most`` of its queries, drawn with a fixed seed."""

    def __init__(self, folder: Path, encoder: Any, store: Path, most: int) -> None:
        collection = Collection(folder)
        self.name, self.documents = collection.name, collection.documents
        count = len(collection.queries)
        chosen = np.sort(np.random.default_rng(0).permutation(count)[:most]).tolist()
        self.queries = [collection.queries[number] for number in chosen]
        place = {key: number for number, key in enumerate(collection.ids)}
        self.relevance = np.zeros((len(chosen), len(place)))
        for line, number in zip(self.relevance, chosen, strict=True):
            for key, grade in collection.judgements[number].items():
                if key in place:
                    line[place[key]] = grade
        top = -np.sort(-self.relevance, axis=1)[:, :10]
        self.discount = 1 / np.log2(np.arange(10) + 2)
        self.ideal = top @ self.discount[: top.shape[1]]
        file = store / f"{self.name}-{collection.hash}-{Path(encoder.given[0]).name}-{most}.npz"
        if not file.exists():
            store.mkdir(parents=True, exist_ok=True)
            np.savez(file, d=encoder.encode_document(self.documents), q=encoder.encode_query(self.queries))
        with np.load(file) as stored:
            self.vectors, self.asked = stored["d"], stored["q"]
        self.dense: Array = self.asked.astype(np.float64) @ self.vectors.T.astype(np.float64)
        self.terms = terms_for(self.documents)
        words = Bm25.build(self.documents, terms=self.terms)
        self.lexical = np.stack([words.scores(query) for query in self.queries]).astype(np.float64)
        sample = self.documents[:: max(1, len(self.documents) // 1000)]
        read, _ = share_read(encoder, sample[:: max(1, len(sample) // LONG_SAMPLE)])
        self.readable = readability(encoder.tokenizer, sample).good and read >= LEAST_READ

    def ndcg(self, scores: Array, sizes: Array | float = 1.0) -> Array:
        """nDCG@10 x 100 of each query; scores that are the same (``cse.ties``) are in the order of the documents."""
        gain: Array = (
            100 * (np.take_along_axis(self.relevance, best(scores, 10, sizes), 1) @ self.discount) / self.ideal
        )
        return gain


def rows_standardised(scores: Array) -> Array:
    spread = scores.std(axis=1, keepdims=True)
    return np.asarray((scores - scores.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1))


def pooled(dense: Array, lexical: Array, a: float, b: float, w: float, r: float) -> Array:
    """The formula in the docstring of ``cse.search.pool.Pool``, of standardised scores."""
    parts = []
    for scores, factor in ((dense, a), (lexical, b)):
        values = factor * scores
        parts.append(values - np.logaddexp.reduce(values, axis=1, keepdims=True))
    return np.asarray(np.logaddexp(np.log(1 - w) + r * parts[0], np.log(w) + r * parts[1]) / r)


def joined(text: str) -> str:
    """Returns a text with single spaces, since an index replaces line breaks."""
    return " ".join(text.split())


class Stored:
    """An encoder that returns stored vectors, so that ``SearchIndex`` can be measured without encoding again."""

    def __init__(self, encoder: Any, documents: list[str], vectors: Array, queries: list[str], asked: Array) -> None:
        self.wrapped = encoder
        self._documents = dict(zip(map(joined, documents), vectors, strict=True))
        self._queries = dict(zip(queries, asked, strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)

    def encode_document(self, texts: list[str], **_: Any) -> Array:
        return np.stack([self._documents[joined(text)] for text in texts])

    def encode_query(self, texts: list[str], **_: Any) -> Array:
        return np.stack([self._queries[text] for text in texts])

    def encode(self, texts: list[str], **_: Any) -> Array:
        return self.encode_document(texts)


def searched(scored: Scored, encoder: Any, **settings: Any) -> Array:
    """nDCG@10 of ``SearchIndex.search(hybrid=True)``."""
    from cse import SearchIndex

    stored: Any = Stored(encoder, scored.documents, scored.vectors, scored.queries, scored.asked)
    index = SearchIndex.build(stored, scored.documents)
    scores = np.full_like(scored.dense, -np.inf)
    for line, hits in zip(scores, index.search(scored.queries, 10, **settings), strict=True):
        line[[hit.row for hit in hits]] = -np.arange(len(hits))
    return scored.ndcg(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--most", type=int, default=400, help="Number of queries of a collection that are used.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from cse import Encoder

    encoder = Encoder(options.model, device="cpu")
    rows: dict[str, Any] = {}
    changes: dict[str, dict[Any, float]] = {}
    readable: dict[str, bool] = {}
    generator = np.random.default_rng(0)
    print("collection  vectors  BM25  --hybrid  (interval)  terms")
    for folder in options.collections:
        scored = Scored(folder, encoder, options.cache, options.most)
        base = scored.ndcg(scored.dense)
        dense, lexical = rows_standardised(scored.dense), rows_standardised(scored.lexical)
        code = scored.terms.tokenizer == "code"
        weight = (hybrid.CODE if code else hybrid.READABLE) if scored.readable else hybrid.UNREADABLE
        scores = pooled(dense, lexical, hybrid.DENSE, hybrid.LEXICAL, weight, hybrid.EXPONENT)
        pool = scored.ndcg(scores, 1 + hybrid.DENSE / scored.dense.std(axis=1, keepdims=True))
        found = searched(scored, encoder, hybrid=True)
        assert np.allclose(pool, found), f"{scored.name}: SearchIndex and the formulas differ"
        draws = generator.integers(0, len(base), (RESAMPLES, len(base)))
        change = summarise(float((pool - base).mean()), (pool - base)[draws].mean(axis=1))
        row = {
            "queries": len(base),
            "vectors": base.mean(),
            "bm25": scored.ndcg(scored.lexical).mean(),
            "pool": change.mean,
            "low": change.low,
            "high": change.high,
            "readable": scored.readable,
            "terms": scored.terms.name,
        }
        rows[scored.name] = {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
        readable[scored.name] = scored.readable
        changes[scored.name] = {
            setting: float((scored.ndcg(pooled(dense, lexical, *setting)) - base).mean()) for setting in GRID
        }
        print(
            f"{scored.name:12}{base.mean():7.1f}{row['bm25']:7.1f}{row['pool']:+8.1f}  "
            f"[{change.low:+.1f}, {change.high:+.1f}]  {scored.terms.name}",
            flush=True,
        )
    print("\nconstants (a, b, w, r) chosen on the other collections of the same kind:")
    for name, own in changes.items():
        others = [table for key, table in changes.items() if key != name and readable[key] == readable[name]]
        if not others:
            continue
        safe = [each for each in GRID if min(table[each] for table in others) >= WORST] or GRID
        chosen = max(safe, key=lambda each: float(np.mean([table[each] for table in others])))
        regret = max(own.values()) - own[chosen]
        print(f"{name:12}{chosen}  change {own[chosen]:+.1f}, regret {regret:.1f}")
        rows[name] |= {
            "chosen_on_others": chosen,
            "change_of_chosen": round(own[chosen], 2),
            "regret": round(regret, 2),
        }
    changed = [row["pool"] for row in rows.values()]
    print(f"\n--hybrid: mean {np.mean(changed):+.1f}, worst {min(changed):+.1f}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf8")


if __name__ == "__main__":
    main()
