"""Ranks with models trained by the default recipe: what training adds to the rankings of ``rankings.py``.

    python benches/domain/trained_rankings.py train COLLECTION ... --models DIR --seeds 0 1
    python benches/domain/trained_rankings.py table COLLECTION ... --models DIR --cache DIR [--json FILE]
    python benches/domain/trained_rankings.py stored

``train`` stores the encoders in ``--models``; a stored one is not trained again. ``table`` ranks with the untrained
model, whose encoded texts are in ``--cache`` as for ``rankings.py``, and with every stored model of a collection, whose
encoded texts it stores beside the models. It prints nDCG@10 and recall@100 after training minus before, averaged over
the seeds, with 95 % intervals of a paired bootstrap over queries. Collections without a stored model are left out.
``stored`` prints the same changes of the rankings of ``adapt_peers.py``: by cosine, and fused with BM25 by ranks.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from adapt_peers import DEFAULT, RESULTS, read, train_cse
from domain_scores import Collection
from rankings import Array, Trial, resampled, rounded, rows, shown

ROWS = (
    "dense",
    "smoothed",
    "one vector, 1024 dimensions of LSA",
    "w 0.2",
    "smoothed, w 0.2",
    "smoothed, feedback, w 0.2",
    "smoothed, feedback, w 0.2, MaxSim 0.3",
)
"""Names of rows of ``rankings.py``."""


def place_of(collection: Collection, models: Path) -> Path:
    """Returns the folder that holds the models of a collection, each named by its seed."""
    return models / f"{collection.name}-{collection.hash}"


def train(folders: list[Path], models: Path, seeds: list[int]) -> None:
    """Trains with the defaults of ``cse train --model minilm`` on the documents that are not held out."""
    for seed in seeds:
        for folder in folders:
            collection = Collection(folder)
            target = place_of(collection, models) / str(seed)
            if target.exists():
                continue
            started, used = time.perf_counter(), time.process_time()
            with tempfile.TemporaryDirectory() as place:
                steps, path = train_cse(collection.rows("documents"), place, seed, 0.0)
                target.parent.mkdir(parents=True, exist_ok=True)
                part = target.with_suffix(".tmp")
                shutil.copytree(path, part, dirs_exist_ok=True)
                part.rename(target)
            spent = f"{time.perf_counter() - started:.0f} s, {time.process_time() - used:.0f} s of processor time"
            print(f"{target}: {steps} steps, {spent}", file=sys.stderr, flush=True)


def judged(trial: Trial) -> dict[str, Array]:
    """Returns nDCG@10 and recall@100 of each query, ``(2, queries)``, for each of ``ROWS``."""
    return {name: np.stack(trial.judge(name, make)) for name, make in rows(trial) if name in ROWS}


def differences(folder: Path, models: Path, cache: Path) -> dict[str, Any] | None:
    """Returns the changes of one collection, or ``None`` if no model of it is stored.

    ``rows`` holds for each ranking ``before``, ``(2, queries)``, and ``change``, ``(seeds, 2, queries)``.
    """
    collection = Collection(folder)
    paths = sorted(path for path in place_of(collection, models).glob("*") if path.name.isdigit())
    if not paths:
        return None
    base = Trial(folder, cache)
    before = judged(base)
    after = []
    for path in paths:
        store = models / "encoded" / path.name
        trial = Trial(folder, store, str(path))
        shared = "lsa-english.npy"  # depends on the texts alone
        if (base.folder / shared).exists() and not (trial.folder / shared).exists():
            shutil.copy(base.folder / shared, trial.folder / shared)
        after.append(judged(trial))
    changes = {name: np.stack([each[name] - before[name] for each in after]) for name in before}
    seeds = [int(path.name) for path in paths]
    found = {name: {"before": before[name], "change": changes[name]} for name in before}
    return {"name": collection.name, "seeds": seeds, "rows": found}


def stored() -> list[dict[str, Any]]:
    """Returns the changes of the stored runs of ``adapt_peers.py``, as ``differences`` does."""
    records = read(RESULTS)
    names = sorted({key.split("/")[0] for key in records})
    found = []
    for name in names:
        seeds = [int(key.split("/")[2]) for key in records if key.startswith(f"{name}/{DEFAULT}/")]
        kept: dict[str, Any] = {}
        for row in ("alone", "with BM25"):
            before, *after = (
                np.array([records[key]["found"][row][figure] for figure in ("ndcg", "recall")])
                for key in (f"{name}/before/0", *(f"{name}/{DEFAULT}/{seed}" for seed in seeds))
            )
            kept[row] = {"before": before, "change": np.stack([each - before for each in after])}
        found.append({"name": name, "seeds": seeds, "rows": kept})
    return found


def table(collections: list[dict[str, Any]]) -> dict[str, Any]:
    """Prints a table of the changes; returns its numbers, and the mean change of each seed."""
    names = [f"{each['name']}, seeds: {len(each['seeds'])}" for each in collections]
    print(f"| ranking | {' | '.join(names)} | mean nDCG@10 | recall@100, mean |")
    print("| --- |" + " ---: |" * (len(names) + 2))
    numbers: dict[str, Any] = {}
    for name in collections[0]["rows"]:
        drawn = [[resampled(part) for part in each["rows"][name]["change"].mean(0)] for each in collections]
        single = [[(part.mean, part.low, part.high) for part, _ in each] for each in drawn]
        means = []
        for part in (0, 1):
            low, high = np.quantile(np.mean([each[part][1] for each in drawn], axis=0), [0.025, 0.975])
            means.append((float(np.mean([each[part][0] for each in single])), float(low), float(high)))
        print(f"| {name} | {' | '.join([shown(each[0]) for each in single] + [shown(each) for each in means])} |")
        numbers[name] = {
            "before": [each["rows"][name]["before"].mean(1).tolist() for each in collections],
            "ndcg": [each[0] for each in single],
            "recall": [each[1] for each in single],
            "means": means,
            "seeds": [each["rows"][name]["change"].mean(2).tolist() for each in collections],
        }
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "table", "stored"))
    parser.add_argument("collections", type=Path, nargs="*")
    parser.add_argument("--models", type=Path, help="folder of the trained models")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="seeds to train with")
    parser.add_argument("--cache", type=Path, help="cache of rankings.py")
    parser.add_argument("--json", type=Path, help="file of the results")
    options = parser.parse_args()
    if options.what == "stored":
        table(stored())
        return
    if options.models is None or not options.collections:
        parser.error("--models: name the folder of the trained models, and the folders of the collections")
    if options.what == "train":
        train(options.collections, options.models, options.seeds)
        return
    if options.cache is None:
        parser.error("--cache: missing; name the folder of the encoded texts of the untrained model")
    found = [differences(folder, options.models, options.cache) for folder in options.collections]
    kept = [each for each in found if each is not None]
    if not kept:
        parser.error("--models: no model of these collections is stored there; train one first")
    report = {"names": [each["name"] for each in kept], "seeds": [each["seeds"] for each in kept], "rows": table(kept)}
    if options.json:
        options.json.write_text(json.dumps(rounded(report), indent=1) + "\n")


if __name__ == "__main__":
    main()
