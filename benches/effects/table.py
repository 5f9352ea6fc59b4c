"""Prints the tables of benches/effects from the stored results.

    python benches/effects/table.py [--base masked masked-2 ...] [--grid masked] [--markdown]

Without ``--base``, the tables of all sets of runs in ``SETS`` are printed, from which docs/effects.md shows some.

The table of systems compares each system with the standard loss (SimCSE) twice: both at their best temperatures, which
have the highest score on STS-B dev with seed 0, and both at the temperatures of the papers. Intervals are 95 %
intervals over pairs and seeds (see ``scores.interval``); with one seed, over pairs only. A run that is not stored has
no row. The runs of several bases are read together; a seed belongs to one base and device, so that a change is always
between two runs of the same.
"""

from __future__ import annotations

import argparse
import statistics
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import scores
from experiments import (
    ABLATIONS,
    BEFORE,
    PUBLISHED,
    PUBLISHED_TAU,
    SEEDS,
    SYSTEMS,
    TAUS,
    Ablation,
    Experiment,
    best_taus,
)
from stored import RESULTS, records

ROOT = Path(__file__).resolve().parents[2]
Table = tuple[list[str], list[list[str]]]
# The sets of stored runs: the name of the base model, and that of the grid which chooses the best temperatures.
SETS = {
    "H200": ("masked-h200", "masked-h200"),
    "Intel Xeon": ("masked", "masked"),
    "AMD EPYC": ("masked-epyc-packed", "masked"),
    "AMD EPYC, first version": ("masked-epyc", "masked"),
}


class Published:
    """The published tables, by id."""

    def __init__(self) -> None:
        path = next(ROOT.glob("python/*/*/published.toml"))
        self.tables = {each["id"]: each for each in tomllib.loads(path.read_text(encoding="utf-8"))["table"]}

    def cell(self, table: str, method: str, column: str) -> float:
        """A value of BERT-base, x 100 where the table prints fractions."""
        found = self.tables[table]
        models = ("bert-base-uncased", "")
        row = next(row for row in found["rows"] if row["method"] == method and row["model"] in models)
        value = float(row["values"][found["columns"].index(column)])
        return 100 * value if found["scale"] == "unit" else value


class Stored:
    """The results in folders, by name; ``grid`` (default: the first folder) chooses the best temperatures."""

    def __init__(self, folders: Sequence[Path], grid: Path | None = None) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        bases: dict[int, tuple[str, str]] = {}
        for name, record in (item for folder in folders for item in records(folder).items()):
            base = record["identity"].get("base", ""), record["identity"].get("device", "")
            if "seed" in record and bases.setdefault(record["seed"], base) != base:
                raise SystemExit(f"{name}: seed {record['seed']} was run from another base or device too")
            self.records.setdefault(name, record)
        self.best = best_taus(grid or folders[0])

    def has(self, experiment: Experiment) -> bool:
        """Whether a run is stored."""
        return experiment.name in self.records

    def runs(self, system: str, tau: float) -> list[Experiment]:
        """The stored runs of a system at a temperature, one for each seed."""
        return self.repeated(Experiment(system, tau))

    def repeated(self, run: Experiment) -> list[Experiment]:
        """The stored runs that differ from a run in nothing but the seed."""
        return [each for each in (replace(run, seed=seed) for seed in SEEDS) if self.has(each)]

    def mean(self, runs: Sequence[Experiment], score: str) -> float:
        """The mean score of runs."""
        return statistics.fmean(self.records[run.name]["scores"][score] for run in runs)

    def change(self, after: Sequence[Experiment], before: Sequence[Experiment], score: str) -> tuple[str, int | None]:
        """The mean change between runs with the same seeds as text, and its sign: 0 if the interval includes 0.

        Alignment and uniformity have no interval, so that their sign is None: it cannot be told from 0.
        """
        mean = self.mean(after, score) - self.mean(before, score)
        if score in ("alignment", "uniformity"):
            return f"{mean:+.3f}", None
        sides = [[self.records[run.name]["resampled"][score].split() for run in side] for side in (after, before)]
        own, other = ([[float(value) for value in draws] for draws in side] for side in sides)
        low, high = scores.interval(own, other)
        return f"{mean:+.2f} [{low:+.2f}, {high:+.2f}]", int(low > 0) - int(high < 0)


AGREEMENT = ("same", "**opposite**", "undecided", "no interval")


def agreement(sign: int | None, published: float) -> str:
    """Whether the sign of a change is the published one."""
    return (
        "no interval"
        if sign is None
        else "undecided"
        if sign == 0
        else "same"
        if sign * published > 0
        else "**opposite**"
    )


def systems(stored: Stored, published: Published) -> Table:
    """One row for each system and temperature of comparison."""
    rows = []
    for system in SYSTEMS:
        taus = [("published", PUBLISHED_TAU[system], PUBLISHED_TAU["standard"])]
        if system in stored.best and "standard" in stored.best:
            taus.insert(0, ("best", stored.best[system], stored.best["standard"]))
        for which, tau, other in taus:
            runs = stored.runs(system, tau)
            if not runs:
                continue
            row = [system, f"{tau:g}, {which}", str(len(runs)), f"{stored.mean(runs, 'mean'):.2f}", "", "", ""]
            pairs = [(run, Experiment("standard", other, run.seed)) for run in runs]
            pairs = [pair for pair in pairs if stored.has(pair[1])]
            if system != "standard" and pairs:
                row[2] += f", {len(pairs)} compared" if len(pairs) < len(runs) else ""
                row[4], sign = stored.change([run for run, _ in pairs], [same for _, same in pairs], "mean")
                if system in PUBLISHED:
                    values = [published.cell(*reference, "Avg.") for reference in PUBLISHED[system]]
                    row[5:] = f"{values[0] - values[1]:+.2f}", agreement(sign, values[0] - values[1])
            rows.append(row)
    return ["system", "tau", "seeds", "mean of seven", "change [95 % interval]", "published change", "sign"], rows


def temperatures(stored: Stored) -> Table:
    """Every system at every temperature with seed 0, compared with the standard loss at the same temperature."""
    rows = []
    for run in (Experiment(system, tau) for system in SYSTEMS for tau in sorted(TAUS)):
        if stored.has(run):
            base = Experiment("standard", run.tau)
            change = stored.change([run], [base], "mean")[0] if run != base and stored.has(base) else ""
            values = [f"{stored.mean([run], score):.2f}" for score in ("STS-B dev", "mean")]
            cost = stored.records[run.name]["train_seconds"]["core_per_step"]
            rows.append([run.system, f"{run.tau:g}", *values, change, f"{cost:.2f}"])
    return ["system", "tau", "STS-B dev", "mean of seven", "change [over pairs]", "core-seconds per step"], rows


def data_sets(stored: Stored) -> Table:
    """Scores by data set, averaged over seeds."""
    columns = [*scores.SEVEN, "mean", "STS-B dev", "alignment", "uniformity"]
    groups = {("before training", ""): [BEFORE]} if BEFORE in stored.records else {}
    groups |= {
        (system, f"{tau:g}"): [run.name for run in stored.runs(system, tau)] for system in SYSTEMS for tau in TAUS
    }
    rows = []
    for (system, tau), names in groups.items():
        if names:
            means = [statistics.fmean(stored.records[name]["scores"][column] for name in names) for column in columns]
            rows.append([system, tau, str(len(names)), *(f"{value:.2f}" for value in means)])
    return ["system", "tau", "seeds", *columns], rows


def ablation(stored: Stored, published: Published, table: Ablation) -> Table:
    """The rows of an ablation that are stored, compared with its first row; none if fewer than two are stored.

    The mean of a row is over the seeds that its first row has too. The first row has the mean of all its seeds and, if
    other rows have fewer, that of seed 0 in brackets, with which their means must be compared.
    """
    first, *_ = table.rows
    bases = stored.repeated(table.experiment(first))
    rows, few = [], False
    for label in table.rows:
        runs, cell, reference = stored.repeated(table.experiment(label)), table.published(label), None
        pairs = [(run, base) for run in runs if stored.has(base := replace(table.experiment(first), seed=run.seed))]
        if not runs:
            continue
        compared = [run for run, _ in pairs] or runs
        row = [label, str(len(compared)), f"{stored.mean(compared, table.score):.2f}", "", "", "", ""]
        if cell is not None:
            row[4] = f"{published.cell(*cell):.2f}"
            reference = published.cell(*cell) - published.cell(*(table.published(first) or cell))
        if label != first and pairs:
            row[3], sign = stored.change(compared, [base for _, base in pairs], table.score)
            few = few or len(pairs) < len(bases)
            if reference is not None:
                row[5:] = f"{reference:+.2f}", agreement(sign, reference)
        rows.append(row)
    if few and rows and rows[0][0] == first:
        rows[0][2] += f" ({stored.mean(bases[:1], table.score):.2f})"
    head = [table.title.split(": ")[1], "seeds", table.score, "change [95 % interval]", "published"]
    return [*head, "published change", "sign"], rows if len(rows) > 1 else []


def signs(stored: Stored, published: Published) -> Table:
    """For each ablation, the number of changes whose sign is that of the paper, with the sums in the last row."""
    rows = []
    for table in ABLATIONS:
        found = [row[-1] for row in ablation(stored, published, table)[1] if row[-1]]
        if found:
            rows.append([table.title, *(str(found.count(kind)) for kind in AGREEMENT)])
    if rows:
        rows.append(["all", *(str(sum(map(int, column))) for column in list(zip(*rows, strict=True))[1:])])
    return ["table", *(kind.strip("*") for kind in AGREEMENT)], rows


def costs(stored: Stored) -> Table:
    """The processor time of the stored training runs with their evaluation."""
    trained = [record for record in stored.records.values() if "train_seconds" in record]
    seconds = [record["train_seconds"]["core"] + record["encode_seconds"]["core"] for record in trained]
    row = [str(len(seconds)), f"{sum(seconds) / 3600:.2f}", f"{statistics.median(seconds):.0f}"] if seconds else []
    return ["set", "runs", "processor hours", "median processor seconds"], [["all", *row]] if row else []


def undecided(stored: Stored, table: Ablation) -> list[Experiment]:
    """The runs of seed 0 of the rows whose change with this seed has no sign, each with the run that it changes."""
    base = table.experiment(next(iter(table.rows)))
    found: list[Experiment] = []
    for run in (table.experiment(label) for label in table.rows):
        if run != base and stored.has(run) and stored.has(base) and stored.change([run], [base], table.score)[1] == 0:
            found += [base, run]
    return found


def lines(table: Table, markdown: bool) -> list[str]:
    """A table as Markdown, or in columns for a terminal."""
    head, rows = table
    if markdown:
        return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
    widths = [max(len(cells[column]) for cells in (head, *rows)) for column in range(len(head))]
    return ["  ".join(map(str.ljust, cells, widths)).rstrip() for cells in (head, *rows)]


def all_tables(stored: Stored, published: Published) -> dict[str, Table]:
    """The tables of some stored runs by title; those without rows are left out."""
    tables = {
        "Systems": systems(stored, published),
        "Temperatures": temperatures(stored),
        "Data sets": data_sets(stored),
        "Signs": signs(stored, published),
        "Cost": costs(stored),
        **{table.title: ablation(stored, published, table) for table in ABLATIONS},
    }
    return {title: table for title, table in tables.items() if table[1]}


def tables_of_sets(results: Path = ROOT / RESULTS) -> dict[str, Table]:
    """The tables of all ``SETS``, by title and name of the set, as in docs/effects.md."""
    published = Published()
    return {
        f"{title} ({name})": table
        for name, (base, grid) in SETS.items()
        for title, table in all_tables(Stored([results / base], results / grid), published).items()
    }


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--base", nargs="+", help="names of base models, folders of the results")
    parser.add_argument("--grid", help="name of the base whose grid chooses the best temperatures; default: the first")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    if options.base:
        grid = options.results / options.grid if options.grid else None
        tables = all_tables(Stored([options.results / name for name in options.base], grid), Published())
    else:
        tables = tables_of_sets(options.results)
    for title, table in tables.items():
        print("\n".join([f"{'### ' if options.markdown else ''}{title}", "", *lines(table, options.markdown), ""]))


if __name__ == "__main__":
    main()
