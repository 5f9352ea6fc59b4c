"""Compares focal logits with other losses that weight hard negatives, in training on the documents of a collection.

    python benches/domain/rivals.py train COLLECTION ... --name h200 --device cuda [--seeds 0 1 2 3 4] [--only 'focal*']
    python benches/domain/rivals.py table

A collection is a folder in the layout of BEIR. ``train`` trains all-MiniLM-L6-v2 on all its documents with each loss
and seed, and computes nDCG@10 x 100 of the vectors for all queries; queries and judgements are never trained on. Apart
from the loss, every run has the settings of ``cse train CORPUS --model minilm`` (60 steps of 64 pairs of spans, and the
similarities of the untrained model are kept), whose loss is the row ``focal, .05``. Results are written to
benches/results/rivals.parquet after each run; stored runs are not repeated. NAME stands for a device: the
seeds of one device are compared with each other. ``table`` prints the changes from the untrained model, with 95 %
intervals of a bootstrap over queries and seeds, and the difference of each loss from the standard one at the same
temperature. Texts are encoded in bfloat16 where this is faster, before and after alike.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parent))
from domain_scores import Collection

RESULTS = Path(__file__).resolve().parents[1] / "results" / "rivals.parquet"
KEY = ("device", "collection", "loss", "seed")
Key = tuple[str, str, str, int]
BEFORE = "before"
RESAMPLES = 2000
KEPT = "keep-similarities"
WEIGHTED = {"feature_augmentations": ("hardness",)}
LOSSES: dict[str, dict[str, Any]] = {
    "standard": {"loss": "standard"},
    "focal": {"loss": "focal"},
    "hardness, alpha 2": {"loss": "standard", **WEIGHTED, "options": {"hardness": {"alpha": 2.0}}},
    "hardness, alpha 9": {"loss": "standard", **WEIGHTED},
    "GIST, margin .1": {
        "loss": "standard",
        "feature_augmentations": ("gist",),
        "options": {"gist": {"margin": 0.1}},
    },
    "orthogonality": {"loss": "standard", "loss_terms": (KEPT, "orthogonality")},
}
TAUS = (0.05, 0.1)
Vector = npt.NDArray[np.float64]


def named(loss: str, tau: float) -> str:
    """Name of a loss with its temperature."""
    return f"{loss}, {f'{tau:g}'.lstrip('0')}"


def ndcg(collection: Collection, model: str, device: str) -> Vector:
    """nDCG@10 x 100 of each query by the vectors of a model; equal scores are in the order of the documents."""
    from cse import Encoder

    encoder = Encoder(model, device=device, precision="auto")
    queries, documents = encoder.encode_query(collection.queries), encoder.encode_document(collection.documents)
    scores = queries.astype(np.float64) @ documents.astype(np.float64).T
    place = {key: number for number, key in enumerate(collection.ids)}
    relevance = np.zeros(scores.shape)
    for line, grades in zip(relevance, collection.judgements, strict=True):
        for key, grade in grades.items():
            if key in place:
                line[place[key]] = grade
    discount = 1 / np.log2(np.arange(10) + 2)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    found = np.take_along_axis(relevance, best, axis=1) @ discount[: best.shape[1]]
    ideal = -np.sort(-relevance, axis=1)[:, :10] @ discount[: best.shape[1]]
    values: Vector = 100 * found / ideal
    return values


def trained(documents: Sequence[str], place: str, loss: str, tau: float, seed: int, device: str) -> str:
    """Trains with a loss; returns the folder of the encoder."""
    from cse import TrainConfig, train

    corpus = Path(place) / "corpus.txt"
    corpus.write_text("".join(f"{line}\n" for line in documents), encoding="utf8")
    settings = {"loss_terms": (KEPT,), **LOSSES[loss]}
    config = TrainConfig(
        corpus=str(corpus),
        output=place,
        model="minilm",
        temperature=tau,
        seed=seed,
        device=device,
        eval_every=0,
        merge_with_base=0.0,
        **settings,
    )
    return str(train(config).folder / "last")


def run(folder: Path, seeds: Sequence[int], only: str, results: Path, name: str, device: str) -> None:
    """Trains and measures the runs of a collection whose names match and that are not stored."""
    collection = Collection(folder)
    documents = [" ".join(text.split()) for text in collection.documents if text.strip()]
    if (name, collection.name, BEFORE, 0) not in read(results):
        add(results, (name, collection.name, BEFORE, 0), ndcg(collection, "minilm", device))
    for seed, tau, loss in itertools.product(seeds, TAUS, LOSSES):
        key = (name, collection.name, named(loss, tau), seed)
        if key in read(results) or not fnmatch.fnmatch(named(loss, tau), only):
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            values = ndcg(collection, trained(documents, place, loss, tau, seed, device), device)
        add(results, key, values)
        seconds = time.perf_counter() - started
        print(f"{collection.name}, {named(loss, tau)}, {seed}: {values.mean():.2f}, {seconds:.0f} s", flush=True)


def read(results: Path) -> dict[Key, Vector]:
    """The stored nDCG@10 x 100 of each query, by device, collection, loss and seed."""
    table = pq.read_table(results) if results.exists() else None
    columns = [] if table is None else [table.column(name).to_pylist() for name in (*KEY, "ndcg")]
    return {(d, c, loss, seed): np.array(values) / 10 for d, c, loss, seed, values in zip(*columns, strict=True)}


def add(results: Path, key: Key, values: Vector) -> None:
    """Adds a result to the file, in tenths of a point."""
    rows = {**read(results), key: values}
    columns = {name: [each[place] for each in sorted(rows)] for place, name in enumerate(KEY)}
    tenths = [np.round(10 * rows[each]).astype(np.int16).tolist() for each in sorted(rows)]
    table = pa.table({**columns, "ndcg": pa.array(tenths, pa.list_(pa.int16()))})
    part = results.with_suffix(".part")
    pq.write_table(table, part, compression="zstd", compression_level=19)
    part.replace(results)


def resampled(change: Vector, collection: int) -> Vector:
    """Means of resamples of changes ``(seeds, queries)``: queries and seeds are drawn with replacement.

    Every collection, by number, has draws of its own. The deviations of the seeds are multiplied by sqrt(n / (n - 1)),
    as in ``cse_papers.reproduce.bootstrap``.
    """
    seeds, queries = change.shape
    generator = np.random.default_rng(collection)
    chosen = change[:, generator.integers(0, queries, (RESAMPLES, queries))].mean(-1)  # (seeds, RESAMPLES)
    if seeds > 1:
        mean = chosen.mean(0)
        chosen = mean + (chosen - mean) * np.sqrt(seeds / (seeds - 1))
    means: Vector = chosen[generator.integers(0, seeds, (seeds, RESAMPLES)), np.arange(RESAMPLES)].mean(0)
    return means


def changes(results: Path) -> dict[str, dict[str, dict[tuple[str, str], Vector]]]:
    """The change of each query from the untrained model, by name of the loss, collection, and (device, seed)."""
    found: dict[str, dict[str, dict[tuple[str, str], Vector]]] = {}
    stored = read(results)
    for (device, collection, loss, seed), values in stored.items():
        if loss != BEFORE:
            own = found.setdefault(loss, {}).setdefault(collection, {})
            own[device, str(seed)] = values - stored[device, collection, BEFORE, 0]
    return found


def summary(values: Sequence[Vector]) -> str:
    """Mean over collections of values ``(seeds, queries)``, and its interval."""
    low, high = np.quantile(
        np.mean([resampled(each, number) for number, each in enumerate(values)], axis=0), [0.025, 0.975]
    )
    return f"{np.mean([each.mean() for each in values]):+.2f} [{low:+.2f}, {high:+.2f}]"


def table(results: Path) -> None:
    """Prints the changes of each loss by collection, their means, and the differences from the standard loss.

    A loss without a run on some collection has no row. The difference from the standard loss is over the seeds of the
    same device that both have.
    """
    found = changes(results)
    collections = sorted(found[named("standard", TAUS[0])])
    print(f"| loss, tau | seeds | {' | '.join(collections)} | mean | minus standard | worst |")
    print(f"| --- | {' | '.join(['---:'] * (len(collections) + 4))} |")
    for tau, loss in itertools.product(TAUS, LOSSES):
        own, standard = found.get(named(loss, tau), {}), found.get(named("standard", tau), {})
        if not own.keys() >= set(collections):
            continue
        values = [np.array(list(own[key].values())) for key in collections]
        difference = ""
        if loss != "standard":
            both = {key: [seed for seed in own[key] if seed in standard.get(key, {})] for key in collections}
            pairs = [[own[key][seed] - standard[key][seed] for seed in both[key]] for key in collections]
            difference = summary([np.array(each) for each in pairs])
        numbers = sorted({len(each) for each in values})
        seeds = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        cells = [f"{each.mean():+.1f}" for each in values]
        worst = min(each.mean() for each in values)
        row = (named(loss, tau), seeds, *cells, summary(values), difference, f"{worst:+.1f}")
        print(f"| {' | '.join(row)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "table"))
    parser.add_argument("collections", nargs="*", type=Path)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2, 3, 4])
    parser.add_argument("--device", default="cpu", help="device of training and encoding (default: cpu)")
    parser.add_argument("--name", default="cpu", help="name of the device in the results (default: cpu)")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="only the losses whose names match")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "table":
        table(options.results)
        return
    for folder in options.collections:
        run(folder, options.seeds, options.only, options.results, options.name, options.device)


if __name__ == "__main__":
    main()
