"""Measures what training on the documents of a collection changes: the vectors alone, and ``cse search --hybrid``.

    python benches/domain/trained_pool.py train COLLECTION ... --models DIR [--recipe default] [--seeds 0]
    python benches/domain/trained_pool.py table [--results FILE]

A collection is a folder in the layout of BEIR. ``train`` trains all-MiniLM-L6-v2 with a recipe and each seed on all
documents of each collection, unless the results of this run are stored, and ranks the documents for all queries before
and after. Queries and judgements are never trained on. ``table`` prints the changes of nDCG@10, averaged over the
seeds, with 95 % intervals of a bootstrap over queries. Encoders and vectors are kept in ``--models``. Texts are encoded
in bfloat16 where this is faster, before and after alike.

Recipes:

* ``default``: ``cse train CORPUS --model minilm``, which is also the training of ``cse adapt``.
* ``retrieved``: the same loss, loss terms, spans and numbers of rows and steps, by ``cse train --pairs``; each row also
  has a hard negative, a span of another document. It is drawn at random from the ranks 10 to 60 of ``cse search
  --hybrid`` with the document as query, without those whose cosine with the document is above 95 % of the cosine of
  the document with the positive: ``cse.search.mining.Mining`` with another ranking.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from adapt_peers import train_cse
from cse.augment.pairings import Spans, SpansOptions
from cse.rng import Draws
from cse.search.fusion import Fusion
from cse.search.mining import Mining
from domain_scores import Collection
from pool import RESAMPLES, Scored, searched

RESULTS = Path(__file__).resolve().parents[1] / "results" / "trained_pool.json"
ROWS = 60 * 64
RANKS = (10, 60)
RANKINGS = ("vectors", "hybrid")


class Retrieved(Mining):
    """Mining whose candidates are those of ``cse search --hybrid``."""

    def _ranked(self, index: Any, anchors: Sequence[str], queries: Any) -> Iterator[Any]:
        first, last = self.ranks
        for hits in index.search(list(anchors), last, hybrid=Fusion()):
            yield np.searchsorted(index.rows, [hit.row for hit in hits[first - 1 :]])


def rows_with_negatives(documents: list[str], seed: int, device: str) -> list[tuple[str, str, str]]:
    """Returns anchor, positive and negative of each row; rows without a candidate are replaced by others."""
    from cse import Encoder, SearchIndex

    index = SearchIndex.build(Encoder("minilm", device=device, precision="auto"), documents)
    draw = np.random.default_rng(seed)
    spans = Spans(SpansOptions(shortest=0.3, longest=0.7, most_words=24), None)
    found: list[tuple[str, str, str]] = []
    for turn in range(20):
        own = np.concatenate([draw.permutation(len(documents)) for _ in range(-(-ROWS // len(documents)))])[:ROWS]
        pair = spans([documents[each] for each in own], np.arange(ROWS), Draws(seed, 2 * turn))
        mining = Retrieved(ranks=RANKS, margin=None, relative_margin=0.05, pick="random", seed=seed + 1000 * turn)
        positives = list(pair.positives or ())
        mined = [each for each in mining(index, [documents[at] for at in own], positives) if len(each.rows)]
        numbers = np.array([each.pair for each in mined])
        texts = index.texts(np.array([each.rows[0] for each in mined]))
        others = spans(texts, numbers, Draws(seed, 2 * turn + 1)).anchors
        rows = [(pair.anchors[n], positives[n], other) for n, other in zip(numbers.tolist(), others, strict=True)]
        found += [rows[at] for at in draw.permutation(len(rows))]
        print(f"  {len(mined):,} of {ROWS:,} rows have a negative", file=sys.stderr, flush=True)
        if len(found) >= ROWS:
            return found[:ROWS]
    raise SystemExit("too few rows have a negative")


def train_retrieved(documents: list[str], place: str, seed: int, device: str) -> tuple[int, str]:
    """Trains as the default recipe does, with a hard negative for each row; returns the steps and the folder."""
    from cse import TrainConfig, train

    path = Path(place) / "rows.jsonl"
    names = ("anchor", "positive", "negative")
    rows = rows_with_negatives(documents, seed, device)
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows), encoding="utf8")
    result = train(
        TrainConfig(
            pairs=str(path),
            columns=names,
            output=place,
            model="minilm",
            seed=seed,
            device=device,
            eval_every=0,
            loss="focal",
            temperature=0.05,
            loss_terms=("keep-similarities",),
            merge_with_base=0.0,
        )
    )
    return result.steps, str(result.folder / "last")


def measured(folder: Path, model: str, store: Path, device: str) -> dict[str, list[float]]:
    """Returns nDCG@10 x 100 of each query by the vectors and by ``cse search --hybrid``."""
    from cse import Encoder

    encoder = Encoder(model, device=device, precision="auto")
    scored = Scored(folder, encoder, store, sys.maxsize)
    found = {"vectors": scored.ndcg(scored.dense), "hybrid": searched(scored, encoder, hybrid=True)}
    return {name: [round(float(each), 3) for each in values] for name, values in found.items()}


def run(folder: Path, models: Path, recipe: str, seed: int, results: Path, device: str) -> None:
    """Trains and measures one run, and stores its results, unless they are stored."""
    stored = json.loads(results.read_text()) if results.exists() else {}
    collection = Collection(folder)
    own = stored.setdefault(collection.name, {})
    if "before" not in own:
        own["before"] = measured(folder, "minilm", models / "encoded" / "before", device)
    key = f"{recipe} {seed}"
    if key not in own:
        documents = [text for text in collection.documents if text.strip()]
        started = time.process_time()
        with tempfile.TemporaryDirectory() as place:
            if recipe == "default":
                steps, path = train_cse([" ".join(text.split()) for text in documents], place, seed, 0.0, device)
            else:
                steps, path = train_retrieved(documents, place, seed, device)
            trained = time.process_time() - started
            own[key] = measured(folder, path, models / "encoded" / key.replace(" ", "-"), device)
        print(f"{collection.name}, {key}: {steps} steps, {trained:.0f} s of processor time", file=sys.stderr)
    latest = json.loads(results.read_text()) if results.exists() else {}
    latest[collection.name] = latest.get(collection.name, {}) | own
    results.write_text("{\n" + ",\n".join(f'"{name}": {json.dumps(each)}' for name, each in latest.items()) + "\n}\n")


def table(results: Path) -> None:
    """Prints the changes of each recipe, of each collection and their mean and worst."""
    stored = json.loads(results.read_text())
    recipes = sorted({key.split()[0] for own in stored.values() for key in own if key != "before"})
    generator = np.random.default_rng(0)
    for recipe in recipes:
        print(f"\n{recipe}\n\n| collection | queries | seeds | vectors before | change | hybrid before | change |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        means: dict[str, list[float]] = {name: [] for name in RANKINGS}
        resampled: dict[str, list[Any]] = {name: [] for name in RANKINGS}
        for collection, own in stored.items():
            runs = [each for key, each in own.items() if key.split()[0] == recipe]
            if not runs:
                continue
            cells, count = [], len(own["before"]["vectors"])
            draws = generator.integers(0, count, (RESAMPLES, count))
            for name in RANKINGS:
                before = np.array(own["before"][name])
                change = np.mean([np.array(each[name]) - before for each in runs], axis=0)
                means[name].append(float(change.mean()))
                resampled[name].append(change[draws].mean(axis=1))
                low, high = np.quantile(resampled[name][-1], [0.025, 0.975])
                cells.append(f"{before.mean():.1f} | {change.mean():+.1f} [{low:+.1f}, {high:+.1f}]")
            print(f"| {collection} | {count:,} | {len(runs)} | {' | '.join(cells)} |")
        cells = []
        for name in RANKINGS:
            low, high = np.quantile(np.mean(resampled[name], axis=0), [0.025, 0.975])
            cells.append(f"{np.mean(means[name]):+.1f} [{low:+.1f}, {high:+.1f}], worst {min(means[name]):+.1f}")
        print(f"| mean | | | | {' | | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "table"))
    parser.add_argument("collections", nargs="*", type=Path)
    parser.add_argument("--models", type=Path, help="folder of the encoded texts")
    parser.add_argument("--recipe", choices=("default", "retrieved"), default="default")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--device", default="cpu", help="device of training and encoding (default: cpu)")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "table":
        table(options.results)
        return
    if options.models is None or not options.collections:
        parser.error("train: name the folders of the collections, and --models")
    for seed in options.seeds:
        for folder in options.collections:
            run(folder, options.models, options.recipe, seed, options.results, options.device)


if __name__ == "__main__":
    main()
