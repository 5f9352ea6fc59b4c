"""What a teacher adds: minilm after ``cse train --teacher all-mpnet-base-v2``, and before, judged by labels.

    python benches/teacher.py                                prints the results that are stored in --json
    python benches/teacher.py DATA --work DIR [--teacher MODEL] [--only SET ...] [--seeds N ...] [--threads N]
                             [--control]

DATA holds corpora/ and transfer/, as for ``verdict.py``. Of each set, up to 2,000 rows (600 abstracts) are trained on,
without their labels, and 1,200 others judge: mean recall x 100 of their labels, by neighbours and by logistic
regression, as in ``cse compare --labels``, with 95 % intervals of the change. With --control, the same steps
have minilm as its own teacher. A cell is stored when it is finished, so that an interrupted program continues.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np

from labels import SEEDS, SETS, TEST, Data

ROWS = {"medical": 600}  # abstracts are long
FILE = Path(__file__).parent / "results" / "teacher.json"


def cell(data: Data, teacher: str, seed: int, threads: int) -> dict[str, Any]:
    """Trains on the rows of a set; returns the scores before and after, and the seconds of training."""
    import cse
    from cse.evaluation.base import FEWEST
    from cse.evaluation.labels import samples_of
    from cse.evaluation.verdict import judge

    rows = ROWS.get(data.name, len(data.texts) - TEST)
    config = cse.TrainConfig(
        model=data.model, teacher=teacher, seed=seed, threads=threads, output=str(data.work), cache=str(data.work)
    )
    began = time.process_time()
    result = cse.train(config, texts=data.texts[:rows])
    seconds = time.process_time() - began
    labels = data.labels[-TEST:]
    kept = np.flatnonzero(np.bincount(labels)[labels] >= FEWEST)
    classes = np.unique(labels[kept], return_inverse=True)[1]
    texts = [data.texts[len(data.texts) - TEST + row] for row in kept]
    vectors = [cse.Encoder(model, device="cpu").encode(texts) for model in (data.model, result.folder / "best")]
    shutil.rmtree(result.folder)
    before, after = (samples_of("label", each, classes) for each in vectors)
    found = judge(before, after).measures
    names = ("neighbours", "linear")
    scores = {
        name: {key: each[key] for key in ("a", "b", "mean", "low", "high")}
        for name, each in zip(names, found, strict=True)
    }
    return {**scores, "steps": result.steps, "processor seconds": seconds}


def means(runs: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Returns the mean changes over the seeds, by set."""
    found: dict[str, list[Any]] = {}
    for key, record in runs.items():
        found.setdefault(key.rpartition("/")[0], []).append(record)
    return {
        key: {name: float(np.mean([each[name]["mean"] for each in group])) for name in ("neighbours", "linear")}
        | {"seeds": len(group)}
        for key, group in found.items()
    }


def report(stored: dict[str, Any]) -> Iterator[str]:
    """Yields a line for each run, and the mean changes of each set."""
    for key, record in stored.get("runs", {}).items():
        scores = "; ".join(
            "{} {a:.1f} -> {b:.1f}, {mean:+.2f} [{low:+.2f}, {high:+.2f}]".format(name, **record[name])
            for name in ("neighbours", "linear")
        )
        yield f"{key}: {scores}; {record['processor seconds']:.0f} s"
    for key, record in stored.get("means", {}).items():
        changes = f"neighbours {record['neighbours']:+.2f}, linear {record['linear']:+.2f}"
        yield f"mean {key}: {changes} ({record['seeds']} seeds)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--teacher", default="sentence-transformers/all-mpnet-base-v2")
    parser.add_argument("--control", action="store_true", help="minilm is its own teacher")
    parser.add_argument("--only", nargs="*", default=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()

    def stored() -> dict[str, Any]:
        return json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}

    if options.data is None:
        print(*report(stored()), sep="\n")
        return
    from cse.io import write_text

    options.work.mkdir(parents=True, exist_ok=True)
    kind = "control" if options.control else "teacher"
    teacher = "minilm" if options.control else options.teacher
    for seed in options.seeds:
        for name in options.only:
            key = f"{kind}/{name}/{seed}"
            if key not in stored().get("runs", {}):
                record = cell(Data(options.data, options.work, name), teacher, seed, options.threads)
                results = stored()  # read again, since another process may have added cells
                results.setdefault("runs", {})[key] = record
                results["means"] = means(results["runs"])
                write_text(options.json, json.dumps(results, indent=1) + "\n")
                print(key, json.dumps(record), flush=True)
    print(*report(stored()), sep="\n")


if __name__ == "__main__":
    main()
