"""Compares the classifier of `cse eval --suite transfer` with SentEval's on the same embeddings.

    python benches/transfer.py --data DIR [--model minilm] [--tasks mr trec mrpc]

SentEval trains its logistic regression by Adam (learning rate 0.001, batches of 64, weight decay as the penalty) until
the validation accuracy, taken every 4 epochs, has failed to rise more than 5 times; the final classifier of a fold uses
5 % of its training rows for that. cse minimises the same objective to convergence with scikit-learn. The folds are the
same. For tasks with a test file, the final classifier is trained with five seeds, since its result depends on them.
Prints a Markdown table. MR takes a quarter of an hour on one core, nearly all of it for SentEval's classifier.
"""

from __future__ import annotations

import argparse
import copy
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cse import Encoder
from cse.evaluation import transfer
from cse.evaluation.base import embed

SEED = 1111


class AdamClassifier:
    """SentEval's classifier without hidden layer, with the settings of its default (not fast) protocol."""

    def __init__(self, penalty: float, seed: int = SEED) -> None:
        self.penalty, self.seed = penalty, seed

    def fit(self, x: Any, y: Any, valid: tuple[Any, Any] | None = None) -> AdamClassifier:
        """Trains on all rows and stops by ``valid``; without it, on 95 % of the rows, and stops by the other 5 %."""
        random = np.random.RandomState(self.seed)
        torch.manual_seed(self.seed)
        classes = int(y.max()) + 1
        if valid is None:
            order = random.permutation(len(x))
            cut = int(0.05 * len(x))
            valid, x, y = (x[order[:cut]], y[order[:cut]]), x[order[cut:]], y[order[cut:]]
        x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
        self.model = torch.nn.Linear(x.shape[1], classes)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001, weight_decay=self.penalty, fused=True)
        best, best_model, failures, epoch = -1.0, self.model, 0, 0
        while epoch <= 200:
            for _ in range(4):
                for rows in torch.from_numpy(random.permutation(len(x))).split(64):  # type: ignore[no-untyped-call]
                    loss = torch.nn.functional.cross_entropy(self.model(x[rows]), y[rows])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                epoch += 1
            accuracy = self.score(*valid)
            if accuracy > best:
                best, best_model = accuracy, copy.deepcopy(self.model)
            else:
                if failures >= 5:
                    break
                failures += 1
        self.model = best_model
        return self

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Returns the labels ``(n,)`` of features ``(n, D)``."""
        return self.model(torch.from_numpy(x).float()).argmax(1).numpy()

    def score(self, x: Any, y: Any) -> float:
        """Returns the accuracy, 0 to 1."""
        return float((self.predict(x) == y).mean())


def best_penalty(x: Any, y: Any, folds: int) -> float:
    means = []
    for penalty in transfer.PENALTIES:
        scores = [
            AdamClassifier(penalty).fit(x[train], y[train], (x[valid], y[valid])).score(x[valid], y[valid])
            for train, valid in transfer.folds_of(y, folds)
        ]
        means.append(round(100 * float(np.mean(scores)), 2))
    return transfer.PENALTIES[int(np.argmax(means))]


def senteval(x: dict[str, Any], y: dict[str, Any], folds: int) -> list[float]:
    """Returns the accuracy x 100 of a task without a development file: one, or one per seed."""
    if "all" not in x:
        penalty = best_penalty(x["train"], y["train"], folds)
        return [
            100 * AdamClassifier(penalty, seed).fit(x["train"], y["train"]).score(x["test"], y["test"])
            for seed in range(SEED, SEED + 5)
        ]
    scores = []
    for train, test in transfer.folds_of(y["all"], folds):
        xt, yt = x["all"][train], y["all"][train]
        scores.append(AdamClassifier(best_penalty(xt, yt, folds)).fit(xt, yt).score(x["all"][test], y["all"][test]))
    return [100 * float(np.mean(scores))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tasks", nargs="+", default=["mr", "trec", "mrpc"])
    parser.add_argument("--scale", type=float, default=1.0, help="factor of the embeddings; 20: about sqrt(D)")
    options = parser.parse_args()
    encoder = Encoder(options.model)
    print("| task | cse | SentEval's classifier | difference | seconds: cse | SentEval |")
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
        scores, _ = transfer.score(task, x, y, 10, lambda: None)
        middle = time.perf_counter()
        theirs = senteval(x, y, 10)
        seconds = f"{middle - started:.0f} | {time.perf_counter() - middle:.0f}"
        ours, mean = scores["accuracy"], float(np.mean(theirs))
        spread = f" ({min(theirs):.2f} to {max(theirs):.2f})" if len(theirs) > 1 else ""
        print(f"| {task.title} | {ours:.2f} | {mean:.2f}{spread} | {ours - mean:+.2f} | {seconds} |", flush=True)


if __name__ == "__main__":
    main()
