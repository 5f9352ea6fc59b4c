"""Compares the two classifiers of `cse eval --suite transfer` on the same embeddings and folds.

    python benches/transfer.py --data DIR [--model minilm] [--tasks mr trec mrpc] [--scale 20]

``converged`` minimises the objective of SentEval's classifier until it converges; ``senteval`` stops early, as SentEval
does. For tasks with a test file, the final classifier of ``senteval`` is trained with five seeds, because its result
depends on the seed. --scale multiplies the embeddings. Larger embeddings need smaller
weights, and the step size of ``senteval``'s optimizer, Adam, does not depend on the scale; with a larger scale, it
therefore needs fewer steps to converge. Prints a Markdown table. The task MR takes an hour on one core, nearly all of
it for ``senteval``.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from cse import Encoder
from cse.evaluation.base import embed
from cse_papers import transfer
from cse_papers.transfer import SEED, best_penalty, converged, nested, senteval

SEEDS = range(SEED, SEED + 5)


def with_seeds(x: dict[str, Any], y: dict[str, Any]) -> list[float]:
    """Returns accuracies x 100 of ``senteval``: one for each seed if the task has a test file, else a single one."""
    if "all" in x:
        return [nested(senteval, x["all"], y["all"], 10, lambda: None)[0]]
    penalty = best_penalty(senteval, x["train"], y["train"], 10, lambda: None)
    return [100 * senteval(x["train"], y["train"], penalty, seed=seed).score(x["test"], y["test"]) for seed in SEEDS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tasks", nargs="+", default=["mr", "trec", "mrpc"])
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="factor for the embeddings, such as 20 (about sqrt(384)) for the 384 dimensions of minilm",
    )
    options = parser.parse_args()
    encoder = Encoder(options.model)
    print("| task | converged | senteval | difference | seconds, converged | seconds, senteval |")
    print("| --- |" + " ---: |" * 5, flush=True)
    for key in options.tasks:
        task = transfer.TASKS[key]
        splits = transfer.load(options.data, key, task, False)
        vectors = iter(embed(encoder, [column for split in splits.values() for column in split.columns]))
        x = {}
        for name, split in splits.items():
            parts = [options.scale * next(vectors) for _ in split.columns]
            x[name] = transfer.pair_features(*parts) if task.pairs else parts[0].astype(np.float64)
        y = {name: split.labels for name, split in splits.items()}
        started = time.perf_counter()
        scores, _ = transfer.score(task, converged, x, y, 10, lambda: None)
        middle = time.perf_counter()
        theirs = with_seeds(x, y)
        seconds = f"{middle - started:.0f} | {time.perf_counter() - middle:.0f}"
        ours, mean = scores["accuracy"], float(np.mean(theirs))
        spread = f" ({min(theirs):.2f} to {max(theirs):.2f})" if len(theirs) > 1 else ""
        print(f"| {task.title} | {ours:.2f} | {mean:.2f}{spread} | {ours - mean:+.2f} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
