"""How often the verdict of ``cse train --labels`` is wrong, with few labelled rows.

    python benches/verdict.py DATA --work DIR [--only NAME ...] [--runs RUN ...] [--threads N] [--json FILE]
    python benches/verdict.py DATA --work DIR --first      the verdict at the head of README.md

DATA holds corpora/ (airline_tweets.csv, medical_abstracts.csv) and transfer/ (trec, cr, subj). On rows of each set,
minilm is trained as by default, without labels, with three seeds; and, for trec and the tweets, with settings that make
it worse. All other rows are encoded before and after; the vectors are stored in --work, and an interrupted program
continues when it is repeated. 1,000 of these rows are judged by 100 draws of 150, and the others, at most ``LARGE``, as
one large set. A word is wrong if the interval of the large set excludes it: better if the interval lies below 0, and
worse if it lies above. The encoder is also judged against itself with noise of 1e-3; there, better and worse are wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import numpy.typing as npt

import cse
from cse.evaluation.base import FEWEST
from cse.evaluation.geometry import unit
from cse.evaluation.labels import samples_of
from cse.evaluation.verdict import judge, lines
from cse.io import write_text

# Rows to train on, by data set, the cheapest first; abstracts are long.
TRAINED = {"trec": 2000, "tweets": 2000, "cr": 1000, "subj": 2000, "medical": 600}
RUNS = ["noise", "seed0", "seed1", "seed2", "worse"]
DRAWS, DRAWN, POOL, LARGE = 100, 150, 1000, 2000
WORSE: dict[str, Any] = {"positive": "dropout", "lr": 5e-5, "max_steps": 400, "loss": "standard", "loss_terms": ()}
MADE_WORSE = ("trec", "tweets")
FILE = Path(__file__).parent / "results" / "verdict.json"

Vectors = npt.NDArray[np.float32]


def read(data: Path, name: str) -> list[tuple[str, str]]:
    """Returns texts and labels of a data set; of equal texts, the first is kept."""
    tables = {"tweets": ("airline_tweets", "text", "airline_sentiment")}
    tables["medical"] = ("medical_abstracts", "medical_abstract", "condition_label")
    if name in tables:
        file, text, label = tables[name]
        with open(data / "corpora" / f"{file}.csv", encoding="utf8", newline="") as lines:
            rows = [(" ".join(row[text].split()), row[label]) for row in csv.DictReader(lines)]
    else:
        files = ["trec.train", "trec.test"] if name == "trec" else [name]
        content = "".join((data / "transfer" / f"{file}.tsv").read_text(encoding="utf8") for file in files)
        rows = [(text, label) for label, text in (line.split("\t", 1) for line in content.splitlines())]
    return list({text: (text, label) for text, label in reversed(rows) if text.strip() and label.strip()}.values())[
        ::-1
    ]


def chosen(data: Path, name: str) -> tuple[list[tuple[str, str]], npt.NDArray[np.int64]]:
    """Returns rows of a data set in random order, those to train on first, and the numbers of their labels."""
    rows = read(data, name)
    rows = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    rows = rows[: TRAINED[name] + POOL + LARGE]
    names = sorted({label for _, label in rows})
    return rows, np.array([names.index(label) for _, label in rows], dtype=np.int64)


def encoded(work: Path, name: str, label: str, rows: list[tuple[str, str]], threads: int) -> Vectors:
    """Returns the vectors of all rows: before training, of a seed, or of the model made worse.

    The encoder is trained on the first ``TRAINED`` rows, unless the vectors are stored.
    """
    file = work / f"{name}-{label}.npy"
    if file.exists():
        stored: Vectors = np.load(file)
        return stored
    model: Any = "minilm"
    if label != "before":
        changes = WORSE if label == "worse" else {}
        seed = 0 if label == "worse" else int(label.removeprefix("seed"))
        config = cse.TrainConfig(
            **{"model": "minilm", "seed": seed, "threads": threads, "output": str(work / "runs"), **changes}
        )
        texts = [text for text, _ in rows[: TRAINED[name]]]
        model = cse.train(config, texts=texts).folder / "best"
    vectors: Vectors = cse.Encoder(model, device="cpu").encode([text for text, _ in rows])
    np.save(file, vectors)
    return vectors


def judged(before: Vectors, after: Vectors, labels: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Any:
    """Returns the verdict from some rows; as in training, classes of fewer than ten of them are left out."""
    rows = rows[np.bincount(labels[rows])[labels[rows]] >= FEWEST]
    _, classes = np.unique(labels[rows], return_inverse=True)
    first, second = (samples_of("label", vectors[rows], classes) for vectors in (before, after))
    return judge(first, second)


def judge_cell(before: Vectors, after: Vectors, labels: npt.NDArray[np.int64], same: bool) -> dict[str, Any]:
    """Returns the verdict of the large set, the words of the draws, and how many of them are wrong."""
    generator = np.random.default_rng(0)
    order = generator.permutation(len(labels))
    pool, large = order[:POOL], order[POOL : POOL + LARGE]
    whole = judged(before, after, labels, large)
    draws = [judged(before, after, labels, generator.choice(pool, DRAWN, replace=False)) for _ in range(DRAWS)]
    record: dict[str, Any] = {"large": whole.to_dict(), "words": dict(Counter(draw.word for draw in draws))}
    for place, main in enumerate(whole.measures):
        words = Counter(draw.measures[place]["word"] for draw in draws)
        wrong = {"better": same or main["high"] < 0, "worse": same or main["low"] > 0}
        excluded = sum(words[word] for word, is_wrong in wrong.items() if is_wrong)
        covered = [draw.measures[place]["low"] <= main["mean"] <= draw.measures[place]["high"] for draw in draws]
        record[main["task"]] = {"words": dict(words), "wrong": excluded, "covers the large set's": sum(covered)}
    return record


def first_run(data: Path, work: Path, threads: int) -> dict[str, Any]:
    """Trains on the table of tweets, as ``cse train tweets.csv --column text --labels airline_sentiment`` does."""
    table = {"corpus": str(data / "corpora" / "airline_tweets.csv"), "column": "text", "labels": "airline_sentiment"}
    verdict: dict[str, Any] = cse.train(cse.TrainConfig(**table, threads=threads, output=str(work / "runs"))).verdict
    return verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(TRAINED))
    parser.add_argument("--runs", nargs="*", default=RUNS)
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    stored = json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}
    if options.first:
        stored["first run"] = first_run(options.data, options.work, options.threads)
        write_text(options.json, json.dumps(stored, indent=1) + "\n")
        print(*lines(stored["first run"]), sep="\n")
        return
    jobs = [(name, label) for label in options.runs for name in options.only if label != "worse" or name in MADE_WORSE]
    for name, label in jobs:
        if label in stored.get(name, {}):
            continue
        rows, labels = chosen(options.data, name)
        others = TRAINED[name]
        before, labels = encoded(options.work, name, "before", rows, options.threads)[others:], labels[others:]
        if label == "noise":
            after = (unit(before) + np.random.default_rng(1).normal(0, 1e-3, before.shape)).astype(np.float32)
        else:
            after = encoded(options.work, name, label, rows, options.threads)[others:]
        counts = {"trained rows": others, "rows": len(labels)}
        record = {**counts, **judge_cell(before, after, labels, same=label == "noise")}
        stored.setdefault(name, {})[label] = record
        write_text(options.json, json.dumps(stored, indent=1) + "\n")
        print(name, label, {key: value for key, value in record.items() if key != "large"}, flush=True)
        print(
            *(
                f"  {each['task']} {each['mean']:+.2f} [{each['low']:+.2f}, {each['high']:+.2f}]"
                for each in record["large"]["measures"]
            ),
            sep="\n",
            flush=True,
        )


if __name__ == "__main__":
    main()
