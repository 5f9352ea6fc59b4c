"""Searches for a training recipe for encoders that have already been trained contrastively, and evaluates it.

    python benches/domain/adapt.py search --data DIR  # tunes on STS-B train, SICK-R train and the label-free MRR
    python benches/domain/adapt.py accept --data DIR  # evaluates new seeds on STS-B dev, SICK-R dev, STS16
    python benches/domain/adapt.py table --data DIR  # prints the stored results
    python benches/domain/adapt.py peers --data DIR  # compares with other methods; DIR as for domain.py

Each run trains all-MiniLM-L6-v2 on the sample corpus. The scores of the trained weights and of their average with the
base weights (``merged``) are written to benches/results/adapt.json when a run ends; stored runs are skipped. ``search``
evaluates on 800 to 900 pairs from each of STS-B train and SICK-R train, and computes the label-free score (MRR) of 500
held-out sentences. The cosines of all pairs are stored too. The table of ``accept`` has 95 % confidence intervals
of the differences, over pairs (from these cosines) and over seeds. Those over pairs come from a bootstrap of clusters
of pairs that share a sentence, with 2,000 resamples and with scores averaged over seeds; those over seeds come from
Student's t.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adapt_peers

RESULTS = Path(__file__).parents[1] / "results" / "adapt.json"
TUNE = ("stsb.train", "sickr.train")
ACCEPT = ("stsb.dev", "sickr.dev", "sts16.test")
TUNE_PAIRS = 800
FRESH_SEEDS = (21, 22, 23, 24, 25)
RESAMPLES = 2000
# The recipe [adapt] of presets/defaults.toml, with and without UNA; then variants of an earlier version of it, which
# differ in the loss and in the use of UNA.
RECIPES = (
    "passages, kept, una",
    "passages, kept",
    "focal una spans .3 to .7, tau .05, 60 steps",
    "standard spans .3 to .7, tau .1, 60 steps",
    "mixed spans .3 to .7, tau .1, 60 steps",
    "standard una spans .3 to .7, tau .1, 60 steps",
    "mixed una spans .3 to .7, tau .1, 60 steps",
)

UNA = {"negatives": ["una"], "una": {"every": 1, "use_as": "hard-negatives", "beta": 0.5}}
FOCAL_UNA: dict[str, Any] = {"loss": "focal", "temperature": 0.05, **UNA}
COMMON: dict[str, Any] = {
    "max_steps": 40,
    "lr": 1e-5,
    "positive": "spans",
    "spans": {"shortest": 0.5, "longest": 0.9},
    "temperature": 0.1,
    "merge_with_base": 0.0,
}
# The loss of most candidates, without loss terms; it replaces the default loss and loss term of all-MiniLM-L6-v2.
PLAIN: dict[str, Any] = {"loss": "standard", "loss_terms": []}
UNLIMITED = {"most_words": 10_000}
# The default recipe of all-MiniLM-L6-v2.
PASSAGES: dict[str, Any] = {
    "loss": "focal",
    "temperature": 0.05,
    "max_steps": 60,
    "spans": {"shortest": 0.3, "longest": 0.7, "most_words": 24},
    "loss_terms": ["keep-similarities"],
}


def spans(shortest: float, longest: float, **settings: Any) -> dict[str, Any]:
    """Returns the settings of a candidate whose spans have these lengths, as fractions of the words of a sentence."""
    return {"spans": {"shortest": shortest, "longest": longest}, **settings}


def sixty(shortest: float, longest: float, **settings: Any) -> dict[str, Any]:
    """Returns the settings of ``spans`` with 60 steps."""
    return spans(shortest, longest, max_steps=60, **settings)


# Candidates of the search; each lists its changes to PLAIN and COMMON.
CANDIDATES: dict[str, dict[str, Any]] = {
    "passages, kept": PASSAGES,
    "passages, kept, una": {**PASSAGES, **UNA},
    "spans tau .1 lr 1e-5": {},
    "spans tau .1 lr 2e-5": {"lr": 2e-5},
    "spans tau .1 lr 1e-5, 60 steps": {"max_steps": 60},
    "spans .3 to .7, tau .1": spans(0.3, 0.7),
    "spans .3 to .7, tau .1 lr 2e-5": spans(0.3, 0.7, lr=2e-5),
    "spans .4 to .8, tau .1": spans(0.4, 0.8),
    "mixed spans tau .1 lr 1e-5": {"loss": "mixed"},
    "standard una spans tau .05 lr 1e-5": {"temperature": 0.05, **UNA},
    "focal una spans tau .05 lr 1e-5": FOCAL_UNA,
    "focal una spans tau .05 lr 2e-5": {**FOCAL_UNA, "lr": 2e-5},
    "focal una spans .3 to .7, tau .05": spans(0.3, 0.7, **FOCAL_UNA),
    "focal una spans .3 to .7, tau .05 lr 2e-5": spans(0.3, 0.7, **FOCAL_UNA, lr=2e-5),
    "focal una spans .3 to .7, tau .05, 60 steps": sixty(0.3, 0.7, **FOCAL_UNA),
    "focal una spans .3 to .7, tau .05 lr 2e-5, 60 steps, linear": sixty(
        0.3, 0.7, **FOCAL_UNA, lr=2e-5, lr_scheduler="linear"
    ),
    "focal una spans .3 to .7, tau .05 lr 2e-5, 60 steps of 128, linear": sixty(
        0.3, 0.7, **FOCAL_UNA, lr=2e-5, lr_scheduler="linear", batch_size=128
    ),
    "focal una spans .2 to .6, tau .05, 60 steps": sixty(0.2, 0.6, **FOCAL_UNA),
    "focal una spans .1 to .5, tau .05, 60 steps": sixty(0.1, 0.5, **FOCAL_UNA),
    "standard spans .3 to .7, tau .1, 60 steps": sixty(0.3, 0.7),
    "mixed spans .3 to .7, tau .1, 60 steps": sixty(0.3, 0.7, loss="mixed"),
    "standard una spans .3 to .7, tau .1, 60 steps": sixty(0.3, 0.7, **UNA),
    "mixed una spans .3 to .7, tau .1, 60 steps": sixty(0.3, 0.7, loss="mixed", **UNA),
    "focal una spans .2 to .6, tau .07, 60 steps": sixty(0.2, 0.6, **{**FOCAL_UNA, "temperature": 0.07}),
    "focal una spans .2 to .6, tau .1, 60 steps": sixty(0.2, 0.6, **{**FOCAL_UNA, "temperature": 0.1}),
    "standard una spans .2 to .6, tau .1, 60 steps": sixty(0.2, 0.6, **UNA),
    "focal una halves, tau .05, 60 steps": {**FOCAL_UNA, "positive": "halves", "max_steps": 60},
    "standard una spans .3 to .7, tau .07, 60 steps": sixty(0.3, 0.7, **UNA, temperature=0.07),
    "standard una spans .3 to .7, tau .05, 60 steps": sixty(0.3, 0.7, **UNA, temperature=0.05),
    "standard una spans .2 to .6, tau .05, 60 steps": sixty(0.2, 0.6, **UNA, temperature=0.05),
    # Dropout positives harm a model that has already been trained contrastively. The next three candidates test them
    # with a usual learning rate, with a tenth of it, and with plain SGD, whose steps are proportional to the gradients.
    "dropout tau .05 lr 2e-5": {"positive": "dropout", "temperature": 0.05, "lr": 2e-5},
    "dropout tau .05 lr 2e-6": {"positive": "dropout", "temperature": 0.05, "lr": 2e-6},
    "dropout tau .05, SGD lr .1": {"positive": "dropout", "temperature": 0.05, "lr": 0.1, "optimizer": "sgd"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("search", "accept", "table", "peers"))
    parser.add_argument(
        "--data",
        type=Path,
        help="Folder of the STS files (stsb.train.tsv, ...) or, with peers, of the collections.",
    )
    parser.add_argument("--only", nargs="*", help="Names of candidates. Default: all; with accept, RECIPES.")
    parser.add_argument("--seeds", nargs="*", type=int)
    parser.add_argument("--collections", nargs="*", help="With peers: names of collections; default: all.")
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    if options.what == "peers":
        options.results = options.results or adapt_peers.RESULTS
        if options.data is not None:
            adapt_peers.peers(options.data, options.results, options.collections, (options.seeds or [0])[0])
        print(adapt_peers.table(adapt_peers.read(options.results)))
        return
    options.results = options.results or RESULTS
    found: dict[str, Any] = json.loads(options.results.read_text()) if options.results.exists() else {}
    if options.what == "table":
        print(tables(found, options.what))
        return
    if options.data is None:
        parser.error("--data: missing; name the folder of the data")
    seeds = options.seeds or ([0] if options.what == "search" else list(FRESH_SEEDS))
    keys = TUNE if options.what == "search" else ACCEPT
    names = options.only or (CANDIDATES if options.what == "search" else RECIPES)
    wanted = [(name, seed) for seed in seeds for name in ["before", *names]]
    for name, seed in wanted:
        key = f"{options.what}/{name}/{seed}"
        if key in found:
            continue
        started = time.perf_counter()
        found[key] = run(name, seed, options.data, keys)
        found[key]["seconds"] = round(time.perf_counter() - started, 1)
        shown = {k: v for k, v in found[key]["trained"].items() if not isinstance(v, list)}
        print(f"{key}: {json.dumps(shown)}", file=sys.stderr, flush=True)
        part = options.results.with_suffix(".tmp")
        part.write_text(json.dumps(found) + "\n")
        part.replace(options.results)
    print(tables(found, options.what))


def run(name: str, seed: int, data: Path, keys: tuple[str, ...]) -> dict[str, Any]:
    """Trains a candidate; returns the scores of the trained weights, and of their average with the base weights.

    For the name ``before``, returns the scores of the model before training.
    """
    from cse import Encoder, TfidfIndex, TrainConfig, train
    from cse.data.corpus import Corpus, hold_out

    sample = str(files("cse") / "resources" / "sample.txt")
    corpus = Corpus.read([sample])
    held_out = corpus.take(hold_out(corpus, seed, wanted=True).held_out)
    pairs = {key: some_pairs(data / f"{key}.tsv", TUNE_PAIRS if keys is TUNE else None) for key in keys}
    base = Encoder("minilm", device="cpu")
    if name == "before":
        return {"trained": scores(base, pairs, held_out), "versions": versions()}
    settings = {**PLAIN, **COMMON, **CANDIDATES[name]}
    if settings["positive"] != "spans":
        del settings["spans"]
    else:
        settings["spans"] = {**UNLIMITED, **settings["spans"]}
    with tempfile.TemporaryDirectory() as folder, optimizer(settings.pop("optimizer", "adamw")):
        TfidfIndex.build(sample).save(f"{folder}/tfidf")
        config = TrainConfig(
            corpus=sample,
            tfidf=f"{folder}/tfidf",
            output=folder,
            model="minilm",
            seed=seed,
            eval_every=0,
            device="cpu",
            log_every=1,
            **settings,
        )
        result = train(config)
        lines = (result.folder / "log.jsonl").read_text().splitlines()
        losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
        encoder = Encoder(result.folder / "last", device="cpu")
    record = {"trained": scores(encoder, pairs, held_out), "first_loss": losses[0], "last_loss": losses[-1]}
    start = dict(base[0].model.named_parameters())
    for key, parameter in encoder[0].model.named_parameters():
        parameter.data.lerp_(start[key].data, 0.5)
    return {**record, "merged": scores(encoder, pairs, held_out), "versions": versions()}


@contextmanager
def optimizer(kind: str) -> Iterator[None]:
    """Replaces AdamW with plain SGD within the context if ``kind`` is ``sgd``."""
    from unittest.mock import patch

    from torch.optim import SGD

    from cse.training.step.state import unique_parameters

    def build(modules: Any, config: Any) -> Any:
        return SGD(unique_parameters(modules), lr=config.lr, fused=True)

    with patch("cse.training.setup.build_optimizer", build) if kind == "sgd" else nullcontext():
        yield


def some_pairs(path: Path, limit: int | None) -> Any:
    """Returns all pairs of a file, or every n-th, where n is the largest step that leaves at least ``limit`` pairs."""
    from cse.evaluation.base import Pairs, read_pairs

    pairs = read_pairs(path)
    step = max(1, len(pairs.gold) // limit) if limit else 1
    return Pairs(pairs.gold[::step], pairs.left[::step], pairs.right[::step])


def scores(encoder: Any, pairs: dict[str, Any], held_out: list[str]) -> dict[str, Any]:
    from cse.evaluation.geometry import score_halves, unit

    halves = score_halves(encoder, held_out)
    record: dict[str, Any] = {"mrr": halves.mrr}
    for key, each in pairs.items():
        left, right = unit(encoder.encode(each.left)), unit(encoder.encode(each.right))
        cosines = (left * right).sum(1)
        record[key] = spearman(cosines, each.gold)
        record[f"{key}/cosines"] = cosines.round(7).tolist()
    return record


def spearman(cosines: npt.NDArray[np.float64], gold: npt.NDArray[np.float64]) -> float:
    from scipy.stats import spearmanr

    return float(spearmanr(cosines, gold).statistic) * 100


def versions() -> dict[str, str]:
    return {name: version(name) for name in ("cse", "torch", "transformers")}


def tables(found: dict[str, Any], what: str) -> str:
    """Returns the table of ``search``, the table of ``accept``, or both if ``what`` is ``table``."""
    parts = [] if what == "accept" else [search_table(found)]
    if what != "search" and any(key.startswith("accept/") for key in found):
        parts.append(accept_table(found))
    return "\n\n".join(parts)


def search_table(found: dict[str, Any]) -> str:
    """Returns a table of differences from the model before training, on the sets used for tuning."""
    lines = ["| search, seed | STS-B train | SICK-R train | MRR | merged: STS-B | SICK-R | MRR | first loss |"]
    lines.append("| --- |" + " ---: |" * 7)
    runs = 0
    for key, record in found.items():
        what, name, seed = key.split("/")
        if what != "search" or name == "before":
            continue
        runs += 1
        before = found[f"search/before/{seed}"]["trained"]
        cells = []
        for form in ("trained", "merged"):
            cells += [f"{record[form][task] - before[task]:+.2f}" for task in TUNE]
            cells.append(f"{record[form]['mrr'] - before['mrr']:+.4f}")
        lines.append(f"| {name}, {seed} | {' | '.join(cells)} | {record['first_loss']:.2g} |")
    return "\n".join([*lines, "", f"{runs} runs, each evaluated with and without merging."])


def accept_table(found: dict[str, Any]) -> str:
    """Returns a table of differences from the model before training, with intervals, on sets not used for tuning."""
    lines = ["| recipe | STS-B dev | SICK-R dev | STS16 | mean of three | over pairs | over seeds | MRR | over seeds |"]
    lines.append("| --- |" + " ---: |" * 8)
    names = sorted({key.split("/")[1] for key in found if key.startswith("accept/")} - {"before"})
    for name in names:
        seeds = [int(key.split("/")[2]) for key in found if key.startswith(f"accept/{name}/")]
        for form in ("trained", "merged"):
            lines.append(accept_row(found, name, form, sorted(seeds)))
    return "\n".join(lines)


def accept_row(found: dict[str, Any], name: str, form: str, seeds: list[int]) -> str:
    before = [found[f"accept/before/{seed}"]["trained"] for seed in seeds]
    after = [found[f"accept/{name}/{seed}"][form] for seed in seeds]
    per_seed = [[b[task] - a[task] for task in ACCEPT] for a, b in zip(before, after, strict=True)]
    means = [statistics.fmean(differences) for differences in per_seed]
    sets = [statistics.fmean(column) for column in zip(*per_seed, strict=True)]
    mrr = [b["mrr"] - a["mrr"] for a, b in zip(before, after, strict=True)]
    low, high = bootstrap(before, after)
    label = f"{name}{' (merged)' if form == 'merged' else ''}, {len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
    cells = [f"{value:+.2f}" for value in [*sets, statistics.fmean(means)]]
    cells += [f"[{low:+.2f}, {high:+.2f}]", over_seeds(means, 2), f"{statistics.fmean(mrr):+.4f}", over_seeds(mrr, 4)]
    return f"| {label} | {' | '.join(cells)} |"


def over_seeds(values: list[float], digits: int) -> str:
    """Returns the 95 % interval of the mean by Student's t as text; ``one seed`` if there is only one value."""
    from scipy.stats import t

    if len(values) < 2:
        return "one seed"
    mean = statistics.fmean(values)
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return f"[{mean - half:+.{digits}f}, {mean + half:+.{digits}f}]"


def bootstrap(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean difference over the three sets; see ``cse.evaluation.significance``."""
    from cse.evaluation.significance import resampled_difference

    differences = np.zeros(RESAMPLES)
    for task in ACCEPT:
        gold, clusters = TASKS[task]
        old = [np.array(record[f"{task}/cosines"]) for record in before[:1]]
        new = [np.array(record[f"{task}/cosines"]) for record in after]
        differences += resampled_difference(old, new, gold, clusters, RESAMPLES)[1] / len(ACCEPT)
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


class Tasks(dict[str, Any]):
    """Gold scores and clusters of pairs by task; a task is read from the folder ``data`` when it is first used."""

    data: Path | None = None

    def __missing__(self, task: str) -> Any:
        from cse.evaluation.base import read_pairs
        from cse.evaluation.significance import sentence_clusters

        if self.data is None:
            sys.exit("--data: missing; name the folder of the STS files, which are needed for the confidence intervals")
        pairs = read_pairs(self.data / f"{task}.tsv")
        self[task] = (pairs.gold, sentence_clusters(pairs.left, pairs.right))
        return self[task]


TASKS = Tasks()

if __name__ == "__main__":
    if "--data" in sys.argv:
        TASKS.data = Path(sys.argv[sys.argv.index("--data") + 1])
    main()
