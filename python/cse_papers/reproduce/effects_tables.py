"""The tables of the laboratory: what the stored runs of its rows say, and how far it can be believed.

Changes over two or more seeds have 95 % intervals over pairs and seeds and p-values (see ``intervals``), which Holm's
method adjusts over the rows of a table.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cse.evaluation.significance import direction, holm
from cse.evaluation.sts import CLEAN_FILES

from .effects import BEFORE, FIRST, GEOMETRY, HALVES, Comparison, Laboratory, Line, is_tau, published_value
from .intervals import TITLES, interval, rank_correlation, welch
from .scores import Records
from .tables import Printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cse.reports.style import Panel


class Results:
    """Records by row, temperature and seed, of one base, corpus and device; ``grid`` has the grid if they have none."""

    def __init__(self, lab: Laboratory, records: Records, grid: Results | None = None) -> None:
        self.lab, self.records, self.grid = lab, records, grid

    def scores(self, row: str, tau: str | None, seed: int | None) -> dict[str, float]:
        scores: dict[str, float] = self.records[row, tau, seed]["scores"]
        return scores

    def seeds(self, row: str, tau: str) -> list[int]:
        """Returns the seeds that are stored."""
        return sorted(seed for name, at, seed in self.records if (name, at) == (row, tau) and seed is not None)

    def selection(self, row: str) -> tuple[str, str] | None:
        """Returns the best temperature of a row with seed 0, and the development set that chose it. The clean sets
        choose it (the mean of their scores) if all runs have their scores, else STS-B dev. None if a run is not
        stored."""
        columns = self.lab.columns(row)
        if any((row, tau, 0) not in self.records for tau in columns):
            return None if self.grid is None else self.grid.selection(row)
        scores = {tau: self.scores(row, tau, 0) for tau in columns}
        clean = all(title in each for each in scores.values() for title in CLEAN_FILES)
        titles = [*CLEAN_FILES] if clean else ["STS-B dev"]
        dev = {tau: statistics.fmean(each[title] for title in titles) for tau, each in scores.items()}
        return max(dev, key=lambda tau: dev[tau]), " and ".join(titles)

    def best(self) -> dict[str, str]:
        """Returns the best temperature of the systems whose grid is stored."""
        found = {name: self.selection(name) for name in self.lab.systems}
        return {name: each[0] for name, each in found.items() if each is not None}

    def mean(self, row: str, tau: str, seeds: Sequence[int], score: str) -> float:
        return statistics.fmean(self.scores(row, tau, seed)[score] for seed in seeds)

    def change(self, after: tuple[str, str], before: tuple[str, str], seeds: Sequence[int], score: str) -> Change:
        """Returns the mean change over seeds. It has an interval if there are two seeds or more; one seed says too
        little of others (at temperature 0.05, the interval over pairs alone holds the mean change of the other seeds
        in 4 of 18 rows). Alignment and uniformity have none, since they were not resampled."""
        mean = self.mean(*after, seeds, score) - self.mean(*before, seeds, score)
        if score in GEOMETRY or len(seeds) < 2:
            return Change(mean, score, len(seeds))
        sides = [
            [np.array(self.records[*run, seed]["draws"][score], dtype=np.float64) / 100 for seed in seeds]
            for run in (after, before)
        ]
        return Change(mean, score, len(seeds), *interval(np.array(sides[0]) - np.array(sides[1])))


@dataclass(frozen=True)
class Change:
    """A mean change of a score over seeds, its 95 % interval and p-value; NaN if it has none."""

    mean: float
    score: str
    seeds: int
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan

    def __str__(self) -> str:
        if self.score in GEOMETRY:
            return f"{self.mean:+.3f}"
        if math.isnan(self.p):
            return f"{self.mean:+.2f}, one seed"
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


AGREEMENT = ("same", "**opposite**", "undecided", "no interval")


def with_tests(rows: Sequence[tuple[list[str], Change | None, float | None]]) -> list[list[str]]:
    """Returns the rows of a table with four more cells each: the change, its p-value, adjusted over the rows by Holm's
    method, the published change, and whether the signs agree, one of ``AGREEMENT``."""
    tested = [change for _, change, _ in rows if change is not None and not math.isnan(change.p)]
    adjusted = dict(zip(map(id, tested), holm([change.p for change in tested]), strict=True))
    found = []
    for cells, change, published in rows:
        p = adjusted.get(id(change))
        row = [*cells, "" if change is None else str(change), "" if p is None else f"{p:.2g}", "", ""]
        if change is not None and published is not None:
            sign = 0 if p is None or p >= 0.05 else direction(change.low, change.high)
            same = AGREEMENT[3 if p is None else 2 if sign == 0 else 0 if sign * published > 0 else 1]
            row[-2:] = f"{published:+.2f}", same
        found.append(row)
    return found


TESTED = ["change [95 % interval]", "p (Holm)", "published change", "sign"]


def systems(results: Results) -> Printed:
    """Compares systems with the first one, both at their best temperatures, and both at those of the papers."""
    lab, best = results.lab, results.best()
    rows: list[tuple[list[str], Change | None, float | None]] = []
    for system, own in lab.systems.items():
        taus = [("best", best[system], best[FIRST])] if {system, FIRST} <= best.keys() else []
        paper = ("own", own, lab.same(system, own)) if system in lab.own else ("published", own, lab.systems[FIRST])
        for which, tau, other in [*taus, paper]:
            seeds = results.seeds(system, tau)
            if not seeds:
                continue
            both = [seed for seed in seeds if seed in results.seeds(FIRST, other)]
            compared = system != FIRST and bool(both)
            few = f", {len(both)} compared" if compared and len(both) < len(seeds) else ""
            seconds = statistics.median(results.records[system, tau, seed].get("train_seconds", 0.0) for seed in seeds)
            mean = f"{results.mean(system, tau, seeds, 'mean'):.2f}"
            cells = [system, f"{tau}, {which}", f"{len(seeds)}{few}", f"{seconds:.0f}", mean]
            change = results.change((system, tau), (FIRST, other), both, "mean") if compared else None
            rows.append((cells, change, lab.published.get(system)))
    return ["system", "tau", "seeds", "seconds", "mean of seven", *TESTED], with_tests(rows)


def temperatures(results: Results) -> Printed:
    """Compares systems at each temperature, with seed 0, with the first one at the same temperature."""
    lab, rows = results.lab, []
    for system in lab.systems:
        for tau in sorted(lab.columns(system), key=_in_order):
            if 0 not in results.seeds(system, tau):
                continue
            other = lab.same(system, tau)
            compared = system != FIRST and 0 in results.seeds(FIRST, other)
            change = str(results.change((system, tau), (FIRST, other), [0], "mean")) if compared else ""
            record = results.records[system, tau, 0]
            values = [f"{record['scores'][score]:.2f}" for score in ("STS-B dev", "mean")]
            used = record["train_processor_seconds"]
            cost = "" if used is None else f"{used / record['steps']:.2f}"
            rows.append([system, tau, *values, change, cost])
    return ["system", "tau", "STS-B dev", "mean of seven", "change", "core-seconds per step"], rows


def _in_order(column: str) -> tuple[float, str]:
    """The key by which columns are sorted: temperatures as numbers."""
    return (float(column), "") if is_tau(column) else (math.inf, column)


def data_sets(results: Results) -> Printed:
    """Lists the scores by data set, averaged over seeds."""
    known = [*TITLES, "mean", "STS-B dev", *GEOMETRY]
    groups: list[tuple[str, str, list[dict[str, float]]]] = []
    if (BEFORE, None, None) in results.records:
        groups.append((BEFORE, "", [results.scores(BEFORE, None, None)]))
    for system in results.lab.systems:
        for tau in results.lab.columns(system):
            scores = [results.scores(system, tau, seed) for seed in results.seeds(system, tau)]
            groups += [(system, tau, scores)] if scores else []
    more = {column: None for _, _, scores in groups for each in scores for column in each if column not in known}
    columns = [*known, *(column for column in more if all(column in each for _, _, some in groups for each in some))]
    rows = [
        [system, tau, str(len(scores)), *(f"{statistics.fmean(each[c] for each in scores):.2f}" for c in columns)]
        for system, tau, scores in groups
    ]
    return ["system", "tau", "seeds", *columns], rows


def comparison(results: Results, table: Comparison) -> Printed:
    """Compares the rows of a comparison that are stored with its first one; no rows if fewer than two are stored. The
    mean of a row is over the seeds that its first row has too. The first row has the mean of all its seeds and, if
    other rows have fewer, that of its first seed in brackets, with which their means must be compared."""
    first, score = table.lines[0], table.score
    bases = results.seeds(first.row, first.tau)
    rows: list[tuple[list[str], Change | None, float | None]] = []
    few = False
    for line in table.lines:
        seeds = results.seeds(line.row, line.tau)
        if not seeds:
            continue
        both = [seed for seed in seeds if seed in bases]
        compared = both or seeds
        cells = [line.label, str(len(compared)), f"{results.mean(line.row, line.tau, compared, score):.2f}", ""]
        if line.published is not None:
            cells[3] = f"{published_value(*line.published):.2f}"
        change = None
        if line is not first and both:
            change = results.change((line.row, line.tau), (first.row, first.tau), both, score)
            few = few or len(both) < len(bases)
        rows.append((cells, change, published_change(table, line)))
    if few and rows[0][0][0] == first.label:
        rows[0][0][2] += f" ({results.mean(first.row, first.tau, bases[:1], score):.2f})"
    head = [table.title.rpartition(": ")[2], "seeds", score, "published"]
    return [*head, *TESTED], with_tests(rows) if len(rows) > 1 else []


def published_change(table: Comparison, line: Line) -> float | None:
    """Returns the published change from the first row of a comparison, or None."""
    first = table.lines[0].published
    if line.published is None or first is None:
        return None
    return published_value(*line.published) - published_value(*first)


def signs(compared: Mapping[str, Printed]) -> Printed:
    """Counts the changes of each comparison whose sign is that of the paper. The last two rows have the sums of
    published gains and of published losses, most of which are ablations."""
    rows, sums = [], {"all published gains": [], "all published losses": []}  # type: ignore[var-annotated]
    for title, (_, lines) in compared.items():
        found = [row[-1] for row in lines if row[-1]]
        if found:
            rows.append([title, *(str(found.count(kind)) for kind in AGREEMENT)])
        for *_, change, sign in lines:
            if sign:
                sums[f"all published {'gains' if float(change) > 0 else 'losses'}"].append(sign)
    if rows:
        rows += [[name, *(str(each.count(kind)) for kind in AGREEMENT)] for name, each in sums.items()]
    return ["table", *(kind.strip("*") for kind in AGREEMENT)], rows


def changes_of_systems(results: Results) -> dict[str, tuple[float, Change]]:
    """Returns the published and the measured change of the systems with a published average, at their temperature."""
    lab, found = results.lab, {}
    for system, published in lab.published.items():
        own, other = lab.systems[system], lab.systems[FIRST]
        seeds = [seed for seed in results.seeds(system, own) if seed in results.seeds(FIRST, other)]
        if seeds:
            found[system] = published, results.change((system, own), (FIRST, other), seeds, "mean")
    return found


def order_panel(results: Results, name: str) -> Panel:
    """Returns a plot of the published and the measured changes of systems with a published average."""
    from cse.reports.style import COLOURS, Panel, labelled

    def draw(axes: Axes) -> None:
        for system, (published, change) in changes_of_systems(results).items():
            if math.isnan(change.p):
                continue  # one seed, whose spread is not known
            axes.plot([published] * 2, [change.low, change.high], color=COLOURS[0], linewidth=1.2)
            axes.plot(published, change.mean, marker="o", linestyle="", color=COLOURS[0])
            axes.annotate(system, (published, change.mean), (4, 3), textcoords="offset points", fontsize=6)
        axes.axhline(0, linewidth=0.6)
        labelled(axes, "published change of the mean of seven", "measured change")

    caption = "Published and measured changes of systems with two seeds or more, with 95 % intervals."
    return Panel(f"Systems ({name})" if name else "Systems", caption, draw)


def order(results: Results) -> Printed:
    """Correlates published and measured changes by rank: of systems with a published average at their published
    temperature, of all published gains, and of the rows of the comparisons, without those of the systems."""
    lab = results.lab
    of_systems = [(published, change.mean) for published, change in changes_of_systems(results).values()]
    of_tables = []
    for table in lab.comparisons:
        first = table.lines[0]
        for line in table.lines[1:] if table.score not in GEOMETRY else ():
            bases = results.seeds(first.row, first.tau)
            seeds = [seed for seed in results.seeds(line.row, line.tau) if seed in bases]
            reference = published_change(table, line)
            known = line.row in lab.published and line.tau == lab.systems[line.row]
            if seeds and reference is not None and not known:
                change = results.change((line.row, line.tau), (first.row, first.tau), seeds, table.score)
                of_tables.append((reference, change.mean))
    gains = [each for each in (*of_systems, *of_tables) if each[0] > 0]
    sets = {
        "systems with a published average": of_systems,
        "all published gains": gains,
        "tables of the papers": of_tables,
    }
    rows = []
    for name, pairs in sets.items():
        if len(pairs) > 3 and all(len(set(side)) > 1 for side in zip(*pairs, strict=True)):
            rho, low, high = rank_correlation(*zip(*pairs, strict=True))
            rows.append([name, str(len(pairs)), f"{rho:+.2f} [{low:+.2f}, {high:+.2f}]"])
    return ["published and measured changes of", "rows", "rank correlation [95 % interval]"], rows


def one_seed(results: Results) -> Printed:
    """Says how far seed 0 can be believed, by temperature: of the rows with three seeds or more, in how many the
    interval of seed 0 alone, over pairs, holds the mean change of the other seeds, and by how much it differs."""
    found: dict[str, list[tuple[bool, float]]] = {}
    for row in results.lab.table.rows:
        for tau in results.lab.columns(row.name):
            seeds = [seed for seed in results.seeds(row.name, tau) if seed in results.seeds(FIRST, tau)]
            if row.name == FIRST or len(seeds) < 3 or 0 not in seeds:
                continue
            sides = [
                np.array(results.records[name, tau, 0]["draws"]["mean"], dtype=np.float64) / 100
                for name in (row.name, FIRST)
            ]
            low, high, _ = interval((sides[0] - sides[1])[None])
            first, others = (
                results.change((row.name, tau), (FIRST, tau), some, "mean").mean for some in ([0], seeds[1:])
            )
            found.setdefault(tau, []).append((low <= others <= high, first - others))
    rows = [
        [
            tau,
            str(len(each)),
            str(sum(holds for holds, _ in each)),
            f"{statistics.fmean(more for _, more in each):+.2f}",
        ]
        for tau, each in sorted(found.items(), key=lambda item: _in_order(item[0]))
    ]
    return ["tau", "rows", "interval of seed 0 holds the others' mean", "seed 0 minus the others"], rows


COMPARABLE = ("model", "corpus", "evaluation data")
"""Keys of the identity of a run that must be equal for changes on two devices to be compared."""


def changes_by_seed(results: Results, row: str, tau: str) -> list[float]:
    """Returns the changes of the mean score by seed, each from the run of the standard loss with the same seed on the
    same device: at its own temperature if the row has its own, else at that of the row."""
    lab = results.lab
    other = lab.systems[FIRST] if tau == lab.systems.get(row) and row not in lab.own else lab.same(row, tau)
    seeds = [seed for seed in results.seeds(row, tau) if seed in results.seeds(FIRST, other)]
    return [results.scores(row, tau, seed)["mean"] - results.scores(FIRST, other, seed)["mean"] for seed in seeds]


def _made(results: Results, key: str) -> set[str]:
    """Returns the values of a key of the identity of runs."""
    return {str(each["identity"].get(key)) for (_, _, seed), each in results.records.items() if seed is not None}


def across(one: Results, other: Results) -> Printed:
    """Compares changes on one device with those on another one: of the same row at the same temperature, and of a row
    of the user with those of all systems at their own temperature. The difference has an interval by Welch's t-test if
    both have two seeds or more. No rows if the runs are of one device, or of other bases, sentences or test data."""
    lab = one.lab
    rows: list[tuple[list[str], Change | None, float | None]] = []

    if _made(one, "device") == _made(other, "device") or any(
        _made(one, key) != _made(other, key) for key in COMPARABLE
    ):
        return [], []
    for row, tau in dict.fromkeys((name, column) for name, column, _ in one.records if column is not None):
        against = lab.systems.items() if row in lab.own else [(row, tau)]
        mine = (
            changes_by_seed(one, row, tau) if row != FIRST and (row not in lab.own or tau == lab.systems[row]) else []
        )
        for name, column in against if mine else ():
            theirs = changes_by_seed(other, name, column) if name != FIRST else []
            if theirs:
                means = statistics.fmean(mine), statistics.fmean(theirs)
                change = Change(means[0] - means[1], "mean", min(len(mine), len(theirs)), *welch(mine, theirs))
                cells = [
                    row,
                    tau,
                    str(len(mine)),
                    f"{means[0]:+.2f}",
                    name,
                    column,
                    str(len(theirs)),
                    f"{means[1]:+.2f}",
                ]
                rows.append((cells, change, None))
    head = ["system", "tau", "seeds", "change", "on the other device", "its tau", "its seeds", "its change"]
    return [*head, "difference [95 % interval]", TESTED[1]], [row[:-2] for row in with_tests(rows)]


def costs(results: Results) -> Printed:
    """Sums the processor time of the training runs and their evaluation."""
    every = [record["processor_seconds"] for (_, _, seed), record in results.records.items() if seed is not None]
    seconds = [used for used in every if used is not None]  # None: not known
    row = [str(len(seconds)), f"{sum(seconds) / 3600:.2f}", f"{statistics.median(seconds):.0f}"] if seconds else []
    return ["set", "runs", "processor hours", "median processor seconds"], [["all", *row]] if row else []


def chosen_by(results: Results) -> str:
    """Says which development set chose the best temperatures."""
    by: dict[str, list[str]] = {}
    for name in results.lab.systems:
        selection = results.selection(name)
        if selection is not None:
            by.setdefault(selection[1], []).append(name)
    remark = {"STS-B dev": ", most of whose pairs are test pairs"}
    said = [f"on {title}{remark.get(title, '')}: {'; '.join(names)}" for title, names in by.items()]
    return f"Best temperatures were chosen with seed 0 {', and '.join(said)}." if said else ""


def all_tables(results: Results) -> dict[str, Printed]:
    """Returns the tables of some records by title; those without rows are left out."""
    compared = {table.title: comparison(results, table) for table in results.lab.comparisons}
    tables = {
        "Systems": systems(results),
        "Temperatures": temperatures(results),
        "Data sets": data_sets(results),
        "Order": order(results),
        "One seed": one_seed(results),
        "Signs": signs(compared),
        "Cost": costs(results),
        **compared,
    }
    return {title: table for title, table in tables.items() if table[1]}


def most_seeds(lab: Laboratory, sets: Mapping[str, Records]) -> Printed:
    """Lists the systems with a published average, each from the set in which most of its seeds are compared, and
    correlates published and measured changes by rank."""
    found: dict[str, tuple[str, float, Change]] = {}
    for name, records in sets.items():
        for system, (published, change) in changes_of_systems(Results(lab, records)).items():
            if system not in found or change.seeds > found[system][2].seeds:
                found[system] = name, published, change
    rows = [
        [system, name, str(change.seeds), f"{published:+.2f}", str(change)]
        for system, (name, published, change) in found.items()
    ]
    if len(rows) > 3:
        pairs = [(published, change.mean) for _, published, change in found.values()]
        rho, low, high = rank_correlation(*zip(*pairs, strict=True))
        rows.append(["rank correlation", "", "", "", f"{rho:+.2f} [{low:+.2f}, {high:+.2f}]"])
    return ["system", "set", "seeds", "published change", "change [95 % interval]"], rows


def tables_of(lab: Laboratory, sets: Mapping[str, Records], others: Mapping[str, Records] = {}) -> dict[str, Printed]:
    """Returns the tables of sets of records by title and name of the set; the grid of the first set serves those with
    the same base. Changes are compared across devices with those of the first set, and with those of ``others``."""
    found: dict[str, Printed] = {}
    first: Results | None = None
    for name, records in sets.items():
        same = first is not None and _made(first, "model") == _made(Results(lab, records), "model")
        results = Results(lab, records, first if same else None)
        found |= {f"{title} ({name})" if name else title: table for title, table in all_tables(results).items()}
        compared = dict(others) if first is None else {next(iter(sets)): first.records, **others}
        for other, stored in compared.items():
            table = across(results, Results(lab, stored))
            found |= {f"Across devices: {f'{name} and ' if name else ''}{other}": table} if table[1] else {}
        first = first or results
    if len(sets) > 1:
        found["Order: the set with most seeds"] = most_seeds(lab, sets)
    return found


def changes_at_own(results: Results) -> list[tuple[str, str, str, list[int], Change | None]]:
    """Returns the row, its column, what it is compared with, its seeds and its change, of the runs that are stored."""
    found: list[tuple[str, str, str, list[int], Change | None]] = []
    runs = dict.fromkeys((name, column) for name, column, _ in results.records if column is not None)
    for name, column in runs:
        seeds, same = results.seeds(name, column), results.lab.same(name, column)
        both = [seed for seed in seeds if seed in results.seeds(FIRST, same)]
        change = results.change((name, column), (FIRST, same), both, HALVES) if both and name != FIRST else None
        found.append((name, column, "" if change is None else f"{FIRST}, {same}", seeds, change))
    return found


def small_table(results: Results) -> Printed:
    """Compares rows, by halves of sentences, with the standard loss at the same temperature."""
    rows: list[tuple[list[str], Change | None, float | None]] = []
    if (BEFORE, None, None) in results.records:
        rows.append(([BEFORE, "", "", "", f"{results.scores(BEFORE, None, None)[HALVES]:.2f}", ""], None, None))
    for name, column, against, seeds, change in changes_at_own(results):
        seconds = statistics.median(results.records[name, column, seed]["train_seconds"] for seed in seeds)
        mean = f"{results.mean(name, column, seeds, HALVES):.2f}"
        rows.append(([name, column, str(len(seeds)), f"{seconds:.0f}", mean, against], change, None))
    head = ["system", "tau", "seeds", "seconds", "MRR of halves x 100", "compared with", *TESTED[:2]]
    return head, [row[: len(head)] for row in with_tests(rows)]


def small_panel(results: Results, note: str) -> Panel:
    """Returns a plot of the changes."""
    from cse.reports.style import COLOURS, Panel, labelled

    def draw(axes: Axes) -> None:
        found = [
            (f"{name}, {column}", change)
            for name, column, _, _, change in changes_at_own(results)
            if change is not None and not math.isnan(change.p)  # of one seed, the spread is not known
        ]
        for place, (_, change) in enumerate(found):
            axes.plot([change.low, change.high], [place] * 2, color=COLOURS[0], linewidth=1.6)
            axes.plot(change.mean, place, marker="o", linestyle="", color=COLOURS[0])
        axes.axvline(0, linewidth=0.6)
        axes.set_yticks(range(len(found)), [name for name, _ in found], fontsize=7)
        axes.invert_yaxis()
        labelled(axes, "small: change of the MRR of halves x 100", "")

    return Panel(results.lab.small.title, note, draw)
