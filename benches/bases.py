"""Which model to begin with, before any training: ``cse compare MODELS --data TABLE --labels COLUMN``.

    python benches/bases.py                                     prints the tables of the stored results
    python benches/bases.py DATA --work DIR --models MODEL ... [--only SET ...] [--threads N]

DATA holds corpora/ and transfer/, as for ``verdict.py``. Of each set, 800 rows that ``labels.py`` does not train on are
a table, by whose labels all-MiniLM-L6-v2 is compared with the models. The second table, of German news, is of the same
command, for the models and for runs that learned the topics of 100 rows (docs/corpora.md has the commands); its data
are not in DATA, and it is not measured here.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from labels import SETS, TABLE, Data

ROWS, FIRST = 800, "minilm"
RESULTS = Path(__file__).parent / "results"
FILE, GERMAN = RESULTS / "bases.json", RESULTS / "german.json"
MEASURES = {"neighbours": "of 10 nearest neighbours", "linear": "by logistic regression"}


def compared(data: Data, models: list[str], threads: int) -> tuple[dict[str, Any], list[float]]:
    """Returns the changes by model and measure, and the seconds of all models for 1,000 rows, the first one first."""
    table = data.work / f"bases-{data.name}.csv"
    with open(table, "w", encoding="utf8", newline="") as file:
        rows = zip(data.texts[TABLE : TABLE + ROWS], data.labels[TABLE : TABLE + ROWS].tolist(), strict=True)
        csv.writer(file).writerows([("text", "label"), *rows])
    words = ["compare", FIRST, *models, "--data", str(table), "--column", "text", "--labels", "label"]
    done = subprocess.run(
        [sys.executable, "-m", "cse", *words, "--threads", str(threads), "--json"],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    found = json.loads(done.stdout)
    changes = {
        Path(each["b"]).name: {
            by: {key: task[key] for key in ("a", "b", "mean", "low", "high")}
            for by, name in MEASURES.items()
            for task in each["tasks"]
            if task["task"].endswith(name)
        }
        for each in found["comparisons"]
    }
    return changes, [each["seconds"] for each in found["costs"]]


def changed(each: dict[str, float]) -> str:
    return f"{each['mean']:+.1f} [{each['low']:+.1f}, {each['high']:+.1f}]"


def report(stored: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the first table, and the median times as multiples of those of the first model."""
    models = list(next(iter(stored["sets"].values())))
    yield f"| set | {' | '.join(f'{model}, {by}' for model in models for by in MEASURES)} |"
    yield "| --- |" + " ---: |" * (len(models) * len(MEASURES))
    for name, each in stored["sets"].items():
        yield f"| {name} | {' | '.join(changed(each[model][by]) for model in models for by in MEASURES)} |"
    times = np.array(list(stored["seconds for 1,000 rows"].values()))
    for model, ratio in zip(models, np.median(times[:, 1:] / times[:, :1], axis=0), strict=True):
        yield f"{model}: {ratio:.1f} times the seconds of all-MiniLM-L6-v2"


def german(stored: dict[str, Any]) -> Iterator[str]:
    """Yields the lines of the table of German news."""
    yield from ("", "| model | mean recall | change | accuracy |", "| --- | ---: | ---: | ---: |")
    for name, each in stored["models"].items():
        change = f"{each['change']:+.1f} [{each['low']:+.1f}, {each['high']:+.1f}]" if "change" in each else ""
        yield f"| {name} | {each['recall']:.1f} | {change} | {each['accuracy']:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--only", nargs="*", default=list(SETS[:3]))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()
    stored = json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}
    if options.data is not None:
        stored = {"rows": ROWS, "sets": {}, "seconds for 1,000 rows": {}}
        options.work.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            data = Data(options.data, options.work, name)
            stored["sets"][name], stored["seconds for 1,000 rows"][name] = compared(
                data, options.models, options.threads
            )
        options.json.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf8")
    print(*report(stored), *german(json.loads(GERMAN.read_text(encoding="utf8"))), sep="\n")


if __name__ == "__main__":
    main()
