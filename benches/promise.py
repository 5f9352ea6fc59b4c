"""Whether what labelled rows promise holds: confidence, accuracy and its interval, over many draws of labelled rows.

    python benches/promise.py                             prints the results that are stored in --json
    python benches/promise.py DATA --work DIR [--only SET ...] [--labels N ...] [--draws N]
    python benches/promise.py DATA --work DIR --drawn     whether biased draws are noticed
    python benches/promise.py DATA --work DIR --learn [--draws N] [--threads N]

DATA holds corpora/ and transfer/, as for ``verdict.py``, and sst2 in transfer/. Of each set, 3,000 rows are encoded by
minilm, or all if there are fewer. N of them, drawn at random by the number of the draw, are labelled; the classifier of
``cse predict`` (``cse.classifier``) is fitted to them, and its promise is compared with the truth on the others. How it
is calibrated was chosen on trec and tweets, and the width of its intervals with the first eight sets in view; reasons
and airlines, two further columns of the tweets, had no part in it.

Calibration error: the mean over ten bins of confidence, weighted by rows, of the distance between mean confidence and
accuracy. Error by label: the distance between mean confidence and accuracy of all rows, of all draws, for which a label
is predicted. Claims: the accuracy of labelled rows with a confidence of .8, .9 or .95 or more, against that of the
other rows. An interval holds if it contains the accuracy on the other rows. With --learn, the labels also teach the
encoder, by ``cse train --learn`` on a table of 2,000 rows, and those of its folds predict them. With --drawn, labelled
rows are drawn at random; the same number of each label; or from the third that is nearest to a random row.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import numpy.typing as npt

import cse
from cse.classifier.drawn import OTHERS, compare
from cse.classifier.fitted import Fitted, fit
from cse.classifier.labelled import FOLDS, Labelled
from cse.evaluation.geometry import unit
from cse.io import write_text
from verdict import read

CHOSEN = ("trec", "tweets", "cr", "subj", "mr", "mpqa", "sst2", "medical")
COLUMNS = {"reasons": "negativereason", "airlines": "airline"}
"""Further columns of labels of the tweets."""
SETS = (*CHOSEN, *COLUMNS)
ROWS, TABLE = 3000, 2000
LABELS, DRAWS = (50, 200), 100
THRESHOLDS = (0.8, 0.9, 0.95)
KINDS = ("random", "equal numbers", "near a row")
FILE = Path(__file__).parent / "results" / "promise.json"

Vectors = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


def rows_of(data: Path, name: str) -> tuple[list[str], Numbers]:
    """Returns at most ``ROWS`` texts of a set, in random order, and the numbers of their labels."""
    if name in COLUMNS:
        with open(data / "corpora" / "airline_tweets.csv", encoding="utf8", newline="") as file:
            found = {" ".join(row["text"].split()): row[COLUMNS[name]].strip() for row in csv.DictReader(file)}
        rows = [(text, label) for text, label in found.items() if text and label]
    elif name == "sst2":
        lines = [(data / "transfer" / f"sst2.{part}.tsv").read_text(encoding="utf8") for part in ("train", "test")]
        split = (line.split("\t", 1) for line in "".join(lines).splitlines())
        rows = [(text, label) for label, text in split]
    else:
        rows = read(data, name)
    rows = [rows[place] for place in np.random.default_rng(1).permutation(len(rows))[:ROWS]]
    names = sorted({label for _, label in rows})
    return [text for text, _ in rows], np.array([names.index(label) for _, label in rows], dtype=np.int64)


def encoded(data: Path, work: Path, name: str) -> tuple[Vectors, Numbers]:
    texts, labels = rows_of(data, name)
    file = work / f"promise-{name}.npy"
    if not file.exists():
        np.save(file, cse.Encoder("minilm", device="cpu").encode(texts))
    return unit(np.load(file)), labels


def labelled(labels: Numbers) -> Labelled:
    """Returns labelled rows as ``cse.classifier.labelled.labelled_texts`` does, in folds of the classifier."""
    frequent = np.flatnonzero(np.bincount(labels) >= 2)
    place = np.full(labels.max() + 1, -1)
    place[frequent] = np.arange(len(frequent))
    folds = np.empty(len(labels), dtype=np.int64)
    folds[np.argsort(labels, kind="stable")] = np.arange(len(labels)) % FOLDS
    return Labelled("label", frequent.tolist(), [""] * len(labels), place[labels], folds, "classifiers")


def measured(fitted: Fitted, vectors: Vectors, truth: Numbers) -> dict[str, Any]:
    """Returns what a classifier promises, and what is true of other rows: their vectors and labels."""
    promise = fitted.promise
    assert promise is not None
    probabilities = fitted.probabilities(vectors)
    best = probabilities.argmax(1)
    right = np.array(fitted.classes)[best] == truth
    confidence = probabilities.max(1) * fitted.known
    tenth = np.minimum((10 * confidence).astype(int), 9)
    bins = [tenth == place for place in range(10)]
    error = sum(abs(confidence[own].mean() - right[own].mean()) * own.mean() for own in bins if own.any())
    recall = [float((best[truth == label] == place).mean()) for place, label in enumerate(fitted.classes)]
    claims = []
    for threshold in THRESHOLDS:
        own, (count, claimed) = confidence >= threshold, promise.above(threshold)
        true = 100 * float(right[own].mean()) if own.any() else None
        claims.append(
            {
                "rows": float(own.mean()),
                "true": true,
                "claimed": None if claimed is None else claimed.value,
                "by": count,
            }
        )
    return {
        "accuracy": 100 * float(right.mean()),
        "mean recall": 100 * float(np.mean(recall)),
        "promised": list(promise.accuracy),
        "promised recall": list(promise.recall),
        "calibration error": 100 * float(error),
        "claims": claims,
        "by label": [
            [int((own := best == place).sum()), float(confidence[own].sum()), int(right[own].sum())]
            for place in range(len(fitted.classes))
        ],
        "labels": fitted.classes,
    }


def cell(vectors: Vectors, labels: Numbers, count: int, draw: int) -> dict[str, Any] | None:
    rows = np.random.default_rng(draw).choice(len(labels), count, replace=False)
    rest = np.setdiff1d(np.arange(len(labels)), rows)
    found = labelled(labels[rows])
    if len(found.classes) < 2:
        return None
    return measured(fit(found, vectors[rows]), vectors[rest], labels[rest])


def biased(vectors: Vectors, labels: Numbers, count: int, draw: int, kind: str) -> bool:
    """Returns whether labelled rows of a kind of draw look as if they were drawn at random."""
    random = np.random.default_rng(draw)
    if kind == "random":
        rows = random.choice(len(labels), count, replace=False)
    elif kind == "equal numbers":
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        rows = np.concatenate([random.permutation(group)[: count // len(groups)] for group in groups])
    else:
        near = np.argsort(vectors @ vectors[random.integers(len(vectors))])[-(len(vectors) // 3) :]
        rows = random.choice(near, count, replace=False)
    rest = random.permutation(np.setdiff1d(np.arange(len(labels)), rows))[:OTHERS]
    fitted = fit(labelled(labels[rows]), vectors[rows])
    assert fitted.promise is not None
    predicted = fitted.probabilities(vectors[rest]).argmax(1)
    return compare(vectors[rows], vectors[rest], fitted.promise.predicted, predicted, fitted.classes).at_random


def learned(data: Path, work: Path, name: str, count: int, draw: int, threads: int) -> dict[str, Any]:
    """Trains with ``--learn`` on a table of which ``count`` rows have a label; returns what its classifier promises."""
    texts, labels = rows_of(data, name)
    size = min(TABLE, len(texts))
    taught = np.random.default_rng(draw).choice(size, count, replace=False)
    cells = [""] * size
    for row in taught.tolist():
        cells[row] = str(labels[row])
    table = work / f"promise-{name}.csv"
    with open(table, "w", encoding="utf8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *zip(texts[:size], cells, strict=True)])
    run = f"promise-{name}-{count}-{draw}"
    shutil.rmtree(work / run, ignore_errors=True)
    settings = {"seed": draw, "threads": threads, "output": str(work), "name": run, "device": "cpu"}
    cse.train(cse.TrainConfig(corpus=str(table), column="text", labels="label", learn=True, **settings))
    classifier = cse.Classifier(work / run, device="cpu")
    fitted = classifier.fitted
    rest = np.setdiff1d(np.arange(len(texts)), taught)[: size + ROWS - TABLE]
    vectors = classifier.opened().encode([texts[row] for row in rest])
    numbers = [int(label) for label in fitted.classes]
    found = measured(Fitted("label", numbers, fitted.linear, fitted.calibration, fitted.promise), vectors, labels[rest])
    shutil.rmtree(work / run)
    return found


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the means over the draws of a set and a number of labels."""
    errors = {}
    for label in sorted({label for each in cells for label in each["labels"]}):
        parts = [each["by label"][each["labels"].index(label)] for each in cells if label in each["labels"]]
        rows, claimed, right = np.sum(parts, axis=0)
        if rows:
            errors[str(label)] = 100 * float(claimed - right) / float(rows)
    claims = []
    for place in range(len(THRESHOLDS)):
        pairs = [
            (each["claims"][place]["claimed"], each["claims"][place]["true"])
            for each in cells
            if None not in (each["claims"][place]["claimed"], each["claims"][place]["true"])
        ]
        claimed, true = np.array(pairs).T if pairs else (np.zeros(0), np.zeros(0))
        rows = float(np.mean([each["claims"][place]["rows"] for each in cells]))
        claims.append(
            {
                "rows": 100 * rows,
                "claimed": float(claimed.mean()) if pairs else None,
                "true": float(true.mean()) if pairs else None,
                "exceeds": 100 * float((claimed > true).mean()) if pairs else None,
                "draws": len(pairs),
            }
        )
    low, high = np.array([each["promised"][1:] for each in cells]).T
    true = np.array([each["accuracy"] for each in cells])
    recall_low, recall_high = np.array([each["promised recall"][1:] for each in cells]).T
    recall = np.array([each["mean recall"] for each in cells])
    return {
        "draws": len(cells),
        "accuracy": float(true.mean()),
        "promised": float(np.mean([each["promised"][0] for each in cells])),
        "holds": 100 * float(((low <= true) & (true <= high)).mean()),
        "width": float(np.median(high - low)),
        "recall holds": 100 * float(((recall_low <= recall) & (recall <= recall_high)).mean()),
        "calibration error": float(np.mean([each["calibration error"] for each in cells])),
        "by label": errors,
        "claims": claims,
    }


def overall(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the means of all cells, and of those of sets that were not used for the choice of the method; ``holds``
    is that of all draws together, and claims are points above the truth."""
    found = {}
    for what, names in (("other sets", set(SETS) - {*CHOSEN}), ("all sets", {*SETS})):
        cells = [each for key, each in results.items() if key.split("/")[0] in names]
        if not cells:
            continue
        draws = np.array([each["draws"] for each in cells])
        holds = np.array([each["holds"] for each in cells])
        errors = [abs(error) for each in cells for error in each["by label"].values()]
        calibration = [each["calibration error"] for each in cells]
        found[what] = {
            "holds": float((draws * holds).sum() / draws.sum()),
            "least": float(holds.min()),
            "width": float(np.median([each["width"] for each in cells])),
            "calibration error": float(np.mean(calibration)),
            "largest calibration error": max(calibration),
            "by label": float(np.mean(errors)),
            "largest by label": max(errors),
        }
        for place, threshold in enumerate(THRESHOLDS):
            claims = [each["claims"][place] for each in cells if each["claims"][place]["draws"]]
            number = np.array([claim["draws"] for claim in claims])
            excess = np.array([claim["claimed"] - claim["true"] for claim in claims])
            found[what][f"claims at {threshold}"] = float((number * excess).sum() / max(number.sum(), 1))
    return found


def report(stored: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the results, and the goals."""
    for kind, goal in (("untrained", 93), ("learn", 90)):
        results = stored.get(kind, {})
        if not results:
            continue
        yield f"{kind}:"
        for key, each in results.items():
            labels = ", ".join(f"{label} {error:+.1f}" for label, error in each["by label"].items())
            claims = "; ".join(
                f"{threshold}: {claim['rows']:.0f} % of rows, claimed {claim['claimed']:.1f}, true {claim['true']:.1f} "
                f"(higher in {claim['exceeds']:.0f} % of {claim['draws']})"
                for threshold, claim in zip(THRESHOLDS, each["claims"], strict=True)
                if claim["draws"]
            )
            yield (
                f"  {key:12} {each['draws']} draws: accuracy {each['accuracy']:.1f}, promised {each['promised']:.1f}, "
                f"interval holds {each['holds']:.0f} % (width {each['width']:.1f}); mean recall: holds "
                f"{each['recall holds']:.0f} %; calibration error {each['calibration error']:.1f}; by label {labels}"
            )
            yield f"               {claims}"
        for what, each in overall(results).items():
            claims = ", ".join(f"{each[f'claims at {threshold}']:+.1f}" for threshold in THRESHOLDS)
            interval = f"holds in {each['holds']:.1f} % (goal {goal}), at least {each['least']:.0f} % in each (goal 88)"
            error = f"{each['calibration error']:.1f} (goal 5), at most {each['largest calibration error']:.1f}"
            by_label = f"{each['by label']:.1f} (goal 5), at most {each['largest by label']:.1f}"
            yield (
                f"  {what}: the interval {interval}, median width {each['width']:.1f}; calibration error {error}; by "
                f"label {by_label}; claims at .8, .9 and .95 above the truth by {claims} (goal +3.0)"
            )
    for key, each in stored.get("drawn", {}).items():
        yield f"{key}: " + ", ".join(f"{kind}: called random in {100 * share:.0f} %" for kind, share in each.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--labels", type=int, nargs="*", default=list(LABELS))
    parser.add_argument("--draws", type=int, default=DRAWS)
    parser.add_argument("--drawn", action="store_true")
    parser.add_argument("--learn", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()

    def stored() -> dict[str, Any]:
        return json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}

    def store(kind: str, key: str, value: Any) -> None:
        results = stored()  # read again, since another process may have added cells
        results.setdefault(kind, {})[key] = value
        results["overall"] = {name: overall(results[name]) for name in ("untrained", "learn") if name in results}
        write_text(options.json, json.dumps(results, indent=1) + "\n")

    if options.data is None:
        print(*report(stored()), sep="\n")
        return
    options.work.mkdir(parents=True, exist_ok=True)
    for name in options.only:
        if options.learn:
            for count in options.labels:
                cells = options.work / f"promise-learn-{name}-{count}.json"
                done = json.loads(cells.read_text(encoding="utf8")) if cells.exists() else []
                for draw in range(len(done), options.draws):
                    done.append(learned(options.data, options.work, name, count, draw, options.threads))
                    write_text(cells, json.dumps(done))
                    store("learn", f"{name}/{count}", summary(done))
            continue
        vectors, labels = encoded(options.data, options.work, name)
        for count in options.labels:
            if options.drawn:
                found = {
                    kind: float(np.mean([biased(vectors, labels, count, draw, kind) for draw in range(options.draws)]))
                    for kind in KINDS
                }
                store("drawn", f"{name}/{count}", found)
            else:
                draws = [cell(vectors, labels, count, draw) for draw in range(options.draws)]
                store("untrained", f"{name}/{count}", summary([each for each in draws if each is not None]))
    print(*report(stored()), sep="\n")


if __name__ == "__main__":
    main()
