"""How often a verdict is wrong if nothing changed, and how often it is given if something did.

    python benches/size.py [--trials N] [--only WORD] [--seed N] [--json FILE]

Each cell draws examples of two sides many times, as often without a difference (size) as with one (power), and counts
the words of ``cse.evaluation.significance``: flips of right and wrong rows, scores of queries, pairs that share
sentences, and seeds. Size is the share of "better" and "worse", with its one-sided upper 95 % limit (Clopper and
Pearson), which should be below 6.5 %; power is the share of the right word. Fewer than six examples have no word.

If the size is 5 %, the limit of 1,000 trials exceeds 6.5 % by chance in some cells; repeat these with more trials, such
as --only "of 30 queries" --trials 10000.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import beta

from cse.evaluation.base import Report, Sample
from cse.evaluation.significance import BETTER, CANNOT_TELL, adjust, compare
from cse.io import write_text

LIMIT = 0.065
FILE = Path(__file__).parent / "results" / "size.json"

Draw = np.random.Generator
Sides = tuple[list[Report], list[Report]]


def reports(values: Any, **about: Any) -> list[Report]:
    """Returns one report for each row of ``(checkpoints, n)`` values."""
    return [Report([], samples=[Sample("task", row, **about)]) for row in np.atleast_2d(np.asarray(values, np.float64))]


def flips(n: int, share: float, gain: float) -> Callable[[Draw, bool], Sides]:
    """Right or wrong rows, of which a share changes; with an effect, more become right, by ``gain`` of all rows."""

    def sides(draw: Draw, effect: bool) -> Sides:
        up = share / 2 + (gain / 2 if effect else 0)
        change = draw.choice([0.0, 100.0, -100.0], n, p=[1 - share, up, share - up])
        before = draw.integers(0, 2, n) * 100.0  # a row may exceed 100, which no method notices
        return reports(before), reports(before + change)

    return sides


def continuous(n: int, effect_size: float, tail: bool) -> Callable[[Draw, bool], Sides]:
    """Scores with normal differences, or with half of them 0 and the others with a long tail, as nDCG of queries."""

    def sides(draw: Draw, effect: bool) -> Sides:
        change = draw.standard_t(4, n) * (draw.random(n) < 0.5) if tail else draw.normal(size=n)
        before = draw.normal(50, 10, n)
        return reports(before), reports(before + 10 * (change + effect * effect_size))

    return sides


def clustered(clusters: int, noise: float) -> Callable[[Draw, bool], Sides]:
    """Cosines of pairs in clusters of one to four that share a sentence; with an effect, one side has less noise."""

    def sides(draw: Draw, effect: bool) -> Sides:
        names = [f"{number}" for number in range(clusters) for _ in range(draw.integers(1, 5))]
        common = draw.normal(size=clusters)[list(map(int, names))]
        gold = np.round(np.clip(2.5 + common + 0.5 * draw.normal(size=len(names)), 0, 5) * 2) / 2
        about = {"gold": gold, "sentences": (names, [f"{name} {at}" for at, name in enumerate(names)])}
        noises = [each * (draw.normal(size=len(names)) + draw.normal(size=clusters)[list(map(int, names))])
                  for each in (noise, noise / 4 if effect else noise)]  # fmt: skip
        before, after = (reports(0.5 + 0.1 * (gold + each), **about) for each in noises)
        return before, after

    return sides


def over_seeds(seeds: int, rows: int | None, gain: float) -> Callable[[Draw, bool], Sides]:
    """Scores of seeds with normal differences; with ``rows``, they are accuracies of so many rows."""

    def sides(draw: Draw, effect: bool) -> Sides:
        scores = draw.normal(70, 1, (2, seeds)) + np.array([[0], [gain * effect]])
        if rows is None:
            before, after = scores[..., None]
        else:
            before, after = 100.0 * (np.arange(rows) < np.round(scores / 100 * rows)[..., None])
        return reports(before), reports(after)

    return sides


def cells() -> Iterator[tuple[str, Callable[[Draw, bool], Sides], bool]]:
    """Yields the name of each cell, how its sides are drawn, and whether they are seeds."""
    sizes = (6, 10, 15, 20, 30, 60, 150, 500, 2000)
    for n in sizes:
        for share in (0.1, 0.3, 0.9):
            if n * share >= 2:
                gain = min(share, 3.2 * (share / n) ** 0.5)
                yield f"flips of {share:.0%} of {n:,} rows", flips(n, share, gain), False
        yield f"normal differences of {n:,} queries", continuous(n, min(1.5, 3.2 / n**0.5), False), False
        yield f"long-tailed differences of {n:,} queries", continuous(n, min(1.5, 3.2 / n**0.5), True), False
    for clusters in (6, 10, 15, 20, 30, 60, 150):
        yield f"Spearman of {clusters} clusters of pairs", clustered(clusters, min(8.0, 0.25 * clusters**0.5)), False
    for seeds in range(2, 11):
        yield f"{seeds} seeds", over_seeds(seeds, None, 4.0), True
        yield f"accuracy of 150 rows over {seeds} seeds", over_seeds(seeds, 150, 4.0), True


def word_of(sides: Sides, seeds: bool) -> str:
    (record,) = adjust(compare(*sides, seeds=seeds))
    return str(record["verdict"])


def measure(sides: Callable[[Draw, bool], Sides], seeds: bool, trials: int, seed: int = 0) -> dict[str, Any]:
    """Returns the number of trials and false words of a cell, their share, its upper limit, and the power."""
    draw = np.random.default_rng(seed)
    false = sum(word_of(sides(draw, False), seeds) != CANNOT_TELL for _ in range(trials))
    tried = max(1, trials // 5)
    found = sum(word_of(sides(draw, True), seeds) == BETTER for _ in range(tried))
    return {"trials": trials, "false": false, "size": false / trials, "upper": limit(false, trials),
            "power": found / tried}  # fmt: skip


def limit(false: int, trials: int) -> float:
    """Returns the one-sided upper 95 % limit of a share (Clopper and Pearson)."""
    return float(beta.ppf(0.95, false + 1, trials - false)) if false < trials else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--only", default="", help="measure the cells with this word in their name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=FILE)
    options = parser.parse_args()
    stored = json.loads(options.json.read_text(encoding="utf8")) if options.json.exists() else {}
    missed = []
    for name, sides, seeds in cells():
        if options.only in name:
            found = stored[name] = measure(sides, seeds, options.trials, options.seed)
            write_text(options.json, json.dumps(stored, indent=1) + "\n")
            shares = ", ".join(f"{key} {found[key]:.3f}" for key in ("size", "upper", "power"))
            print(f"{name}: {shares}", flush=True)
            missed += [name] * (found["upper"] > LIMIT)
    sys.exit(f"above {LIMIT:.1%}: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
