"""Whether labels may judge an encoder on rows that it was trained on, without their labels.

    python benches/power.py DATA --work DIR [--only NAME ...] [--seeds N ...] [--json FILE]

Held-out rows are few, so that most verdicts cannot tell. If training without labels gained as much on the rows that it
trains on as on others, all rows could judge. For each data set of ``benches/verdict.py`` and each seed, the rows that
are trained on and as many others are judged. The program prints the gain of the former minus that of the latter, by
neighbours and by logistic regression, and pools these differences over sets and seeds, with a 95 % interval of a
bootstrap over rows, within labels. All rows may judge if it lies within +-0.5 points; else held-out rows do. The
vectors are stored in --work, those of ``verdict.py`` too, and an interrupted program continues.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ |= {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}

import numpy as np
import numpy.typing as npt

from cse.evaluation.base import FEWEST
from cse.evaluation.labels import samples_of
from cse.evaluation.significance import resampled_means, strata_of, weights_of
from cse.io import write_text
from verdict import TRAINED, chosen, encoded

WITHIN, RESAMPLES = 0.5, 2000
FILE = Path(__file__).parent / "results" / "power.json"

Vector = npt.NDArray[np.float64]


def gains(
    before: npt.NDArray[np.float32], after: npt.NDArray[np.float32], labels: npt.NDArray[np.int64]
) -> dict[str, tuple[float, Vector]]:
    """Returns, for each measure, the gain in points, and the gains of resamples of the rows within their labels."""
    kept = np.bincount(labels)[labels] >= FEWEST
    classes = np.unique(labels[kept], return_inverse=True)[1]
    found = {}
    sides = (samples_of("label", vectors[kept], classes) for vectors in (before, after))
    for old, new in zip(*sides, strict=True):
        rows = (new.values - old.values) * weights_of(classes, len(classes))
        found[old.task] = float(rows.mean()), resampled_means(rows, strata_of(classes, len(classes)), RESAMPLES)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(TRAINED))
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    pooled: dict[str, list[tuple[float, Vector]]] = {}
    cells: dict[str, dict[str, list[float]]] = {}
    shuffle = np.random.default_rng(0)  # breaks the link of the resamples of the two halves
    for name in options.only:
        rows, labels = chosen(options.data, name)
        half = TRAINED[name]
        before = encoded(options.work, name, "before", rows, 1)
        for seed in options.seeds:
            after = encoded(options.work, name, f"seed{seed}", rows, 1)
            parts = np.s_[:half], np.s_[half : 2 * half]
            trained, unseen = (gains(before[part], after[part], labels[part]) for part in parts)
            for task, (gain, draws) in trained.items():
                other, others = unseen[task]
                pooled.setdefault(task, []).append((gain - other, draws - shuffle.permutation(others)))
                cells.setdefault(f"{name}, seed {seed}", {})[task] = [gain, other]
                print(f"{name}, seed {seed}, {task}: trained on {gain:+.2f}, unseen {other:+.2f}", flush=True)
    result: dict[str, Any] = {"cells": cells, "pooled": {}}
    for task, found in pooled.items():
        mean = float(np.mean([difference for difference, _ in found]))
        low, high = np.quantile(np.mean([draws for _, draws in found], axis=0), [0.025, 0.975])
        allowed = bool(low > -WITHIN and high < WITHIN)
        result["pooled"][task] = {"mean": mean, "low": float(low), "high": float(high), "all rows may judge": allowed}
        print(f"{task}: {mean:+.2f} [{low:+.2f}, {high:+.2f}]: {'all' if allowed else 'held-out'} rows judge")
    write_text(options.json, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
