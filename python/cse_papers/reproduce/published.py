"""Compares published values with ours: means, intervals and tests, as JSON, Markdown and plots; losses on documents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cse.evaluation.significance import Difference, holm, t_interval

from .intervals import Vector, mean_interval
from .scores import ANY, Records
from .tables import Printed, Row, Table

if TYPE_CHECKING:
    from cse.reports.style import Panel

Stored = Mapping[str, Sequence[Mapping[str, Any]]]
"""Stored cells by the name of the row."""
SELECTION = (
    "Without --dev clean, checkpoints are selected, as in the papers, mostly on test pairs: 1,135 of the 1,496 "
    "distinct pairs of STS-B dev are pairs of the seven test sets, nearly all of STS12 to STS16, and 14 of the 500 of "
    "SICK-R dev."
)


@dataclass(frozen=True)
class Ours:
    """Our scores for one cell of the printed table, x 100 unless the column is alignment or uniformity."""

    by_seed: Mapping[int | None, float]
    """Score by seed; the seed is None for an encoder that is not trained."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(list(self.by_seed.values())))

    @property
    def sd(self) -> float:
        """Standard deviation over the seeds (divisor n - 1); NaN for one seed."""
        values = list(self.by_seed.values())
        return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan

    @property
    def interval(self) -> Difference | None:
        """95 % interval of the mean by Student's t; None for one seed."""
        values = list(self.by_seed.values())
        return t_interval(values) if len(values) > 1 else None

    def holds(self, published: float) -> bool | None:
        """Returns whether a published value lies in the interval; None without an interval or a published value."""
        interval = self.interval
        if interval is None or math.isnan(published):
            return None
        return interval.low <= published <= interval.high


def collect(table: Table, row: Row, stored: Stored) -> dict[str, Ours]:
    """Returns our scores for a row, by column; columns without a stored cell are left out."""
    scores: dict[str, dict[int | None, float]] = {}
    for cell in stored.get(row.name, ()):
        for column in table.columns:
            if cell["column"] not in (None, column):
                continue
            score = cell["scores"].get(column, cell["scores"].get(ANY))
            if score is not None:
                scores.setdefault(column, {})[cell["seed"]] = score
    return {column: Ours(values) for column, values in scores.items()}


def paired_tests(table: Table, rows: Sequence[Row], stored: Stored) -> list[dict[str, Any]]:
    """Compares each of our rows with our first row of the same model, by paired t-tests over the seeds that both have.

    There is one test for each column with at least two such seeds. Published means are not compared. The records have
    the keys ``row``, ``against``, ``column``, ``seeds``, ``mean``, ``low``, ``high``, ``p`` and ``p_holm``, the p-value
    adjusted over all tests by Holm's method.
    """
    records: list[dict[str, Any]] = []
    first: dict[str, tuple[Row, dict[str, Ours]]] = {}
    for row in rows:
        ours = collect(table, row, stored)
        if not ours or any(None in entry.by_seed for entry in ours.values()):
            continue
        base, theirs = first.setdefault(row.model, (row, ours))
        if base is row:
            continue
        for column in ours.keys() & theirs.keys():
            a, b = theirs[column].by_seed, ours[column].by_seed
            seeds = sorted(set(a) & set(b), key=str)
            if len(seeds) < 2:
                continue
            gain = t_interval([b[seed] - a[seed] for seed in seeds])
            about = {"row": row.name, "against": base.name, "column": column, "seeds": len(seeds)}
            records.append({**about, "mean": gain.mean, "low": gain.low, "high": gain.high, "p": gain.p})
    records.sort(key=lambda test: ([row.name for row in rows].index(test["row"]), table.columns.index(test["column"])))
    for record, p in zip(records, holm([test["p"] for test in records]), strict=True):
        record["p_holm"] = p
    return records


def to_dict(table: Table, rows: Sequence[Row], stored: Stored, notes: Mapping[str, str]) -> dict[str, Any]:
    """Returns the table as a JSON object; ``notes`` are those of a ``work.Plan``."""
    records = []
    for row in rows:
        ours = collect(table, row, stored)
        cells = {}
        for place, column in enumerate(table.columns):
            cell: dict[str, Any] = {"published": row.values[place]}
            if row.sd:
                cell["published_sd"] = row.sd[place]
            if column in ours:
                entry, interval = ours[column], ours[column].interval
                cell |= {"ours": entry.mean, "sd": entry.sd, "seeds": len(entry.by_seed)}
                if interval is not None:
                    cell |= {"low": interval.low, "high": interval.high}
                cell["published_in_interval"] = entry.holds(row.values[place])
            cells[column] = cell
        about = {"method": row.method, "model": row.model, "note": row.note, "remark": row.remark}
        about["misprint"] = row.misprint
        records.append({**about, "status": notes.get(row.name, ""), "cells": cells})
    return {
        "table": table.name,
        "source": table.source,
        "metric": table.metric,
        "note": table.note,
        "rows": records,
        "tests": paired_tests(table, rows, stored),
    }


def flat(values: Mapping[str, Any]) -> Printed:
    """Returns the names of columns and the rows of ``to_dict``, with a column for each of its values, for CSV."""
    columns = [f"{column}, {key}" for column in values["rows"][0]["cells"] for key in CELL] if values["rows"] else []
    rows = []
    for row in values["rows"]:
        cells = [
            "" if (value := cell.get(key)) is None else str(value) for cell in row["cells"].values() for key in CELL
        ]
        rows.append([f"{row['method']}, {row['model']}".removesuffix(", "), *cells])
    return ["row", *columns], rows


CELL = ("published", "ours", "sd", "seeds", "low", "high")
"""Values of a cell of ``to_dict`` that ``flat`` returns."""


def shown_rows(table: Table, rows: Sequence[Row], stored: Stored, notes: Mapping[str, str]) -> Printed:
    """Returns the table as it is printed: the published values of each row, and below them ours."""
    found = []
    for row in rows:
        if any(not math.isnan(value) for value in row.values):
            cells = [_published(value, row.sd[n] if row.sd else math.nan) for n, value in enumerate(row.values)]
            found.append([f"{row.name}{' †' if row.misprint else ''}", "published", *cells])
        ours = collect(table, row, stored)
        if ours:
            shown = [_ours(ours.get(c), row.values[n]) for n, c in enumerate(table.columns)]
            seeds = max(len(entry.by_seed) for entry in ours.values())
            name = f"{row.name}{' ‡' if row.remark else ''}"
            found.append([name, f"ours, {seeds} seed{'s' if seeds > 1 else ''}", *shown])
        elif row.name in notes:
            found.append([row.name, notes[row.name], *[""] * len(table.columns)])
    return ["row", "", *table.columns], found


def remarks(table: Table, rows: Sequence[Row], stored: Stored) -> list[str]:
    """Returns the remarks below the table."""
    found = []
    for row in rows:
        if row.misprint:
            found.append(f"† {row.name}: the printed values do not agree with each other ({row.misprint}).")
        if row.remark and collect(table, row, stored):
            found.append(f"‡ {row.name}: {row.remark}.")
    return found


def markdown(table: Table, rows: Sequence[Row], stored: Stored, notes: Mapping[str, str]) -> str:
    """Returns the table of ``shown_rows`` and the tests as Markdown."""
    lines = [f"{table.source}: {table.metric}.", *([f"Note: {table.note}"] if table.note else []), ""]
    head, printed = shown_rows(table, rows, stored, notes)
    lines += [f"| {' | '.join(cells)} |" for cells in (head, ["---", "---", *["---:"] * len(table.columns)], *printed)]
    lines += [
        "",
        "Ours: mean ± standard deviation over seeds, [95 % interval of the mean]; *: the interval contains the "
        "published value.",
    ]
    lines += [SELECTION, *remarks(table, rows, stored)]
    tests = paired_tests(table, rows, stored)
    if tests:
        lines += ["", "| paired t-test over seeds | against | column | seeds | difference | p (Holm) |"]
        lines += ["| --- | --- | --- | ---: | ---: | ---: |"]
        lines += [
            f"| {test['row']} | {test['against']} | {test['column']} | {test['seeds']} | {test['mean']:+.2f} "
            f"[{test['low']:+.2f}, {test['high']:+.2f}] | {test['p_holm']:.3f} |"
            for test in tests
        ]
    return "\n".join(lines)


def _published(value: float, sd: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.2f}" if math.isnan(sd) else f"{value:.2f} ± {sd:.2f}"


def _ours(ours: Ours | None, published: float) -> str:
    if ours is None:
        return ""
    interval = ours.interval
    if interval is None:
        return f"{ours.mean:.2f}"
    star = " *" if ours.holds(published) else ""
    return f"{ours.mean:.2f} ± {ours.sd:.2f} [{interval.low:.2f}, {interval.high:.2f}]{star}"


def panels(table: Table, rows: Sequence[Row], stored: Stored) -> list[Panel]:
    """Returns a panel for each column: published values as crosses, ours as points with their intervals."""
    from cse.reports.style import COLOURS, INK, Panel, labelled

    def draw_column(column: str) -> Any:
        place = table.columns.index(column)
        some = [row for row in rows if collect(table, row, stored) or not math.isnan(row.values[place])]

        def draw(axes: Any) -> None:
            axes.plot([], [], marker="x", linestyle="", color=INK, label="published")
            axes.plot([], [], marker="o", linestyle="", color=COLOURS[0], label="ours")
            for y, row in enumerate(some):
                if not math.isnan(row.values[place]):
                    axes.plot(row.values[place], y, marker="x", linestyle="", color=INK)
                ours = collect(table, row, stored).get(column)
                if ours is None:
                    continue
                interval = ours.interval
                if interval is not None:
                    axes.plot([interval.low, interval.high], [y, y], color=COLOURS[0], linewidth=1.6)
                axes.plot(ours.mean, y, marker="o", linestyle="", color=COLOURS[0])
            axes.set_yticks(range(len(some)), [row.name for row in some], fontsize=6)
            axes.invert_yaxis()
            axes.grid(axis="x", alpha=0.4)
            labelled(axes, table.metric, "")
            axes.xaxis.label.set_fontsize(7)

        return draw

    caption = "Crosses: published values. Points: our means, with 95 % intervals over seeds."
    return [Panel(column, caption, draw_column(column)) for column in table.columns]


def changes_on_documents(table: Table, sets: Mapping[str, Records]) -> Printed:
    """Returns the names of the columns, and the changes of each row of ``domain`` that has runs on all collections. A
    row is trained on the documents of each collection. The changes of nDCG@10 from the untrained model have 95 %
    intervals over queries and seeds, and are compared with those of the standard loss at the same temperature."""
    found: dict[str, dict[str, dict[tuple[str, int], Vector]]] = {}  # by row, collection, and set and seed
    for name, records in sets.items():
        scores = {key: np.array(each["draws"]["ndcg"], dtype=np.float64) / 100 for key, each in records.items()}
        before = {column: each for (_, column, seed), each in scores.items() if seed is None}
        for (method, column, seed), each in sorted(scores.items(), key=str):
            if seed is not None and column in before:
                found.setdefault(method, {}).setdefault(str(column), {})[name, seed] = each - before[column]
    collections = sorted({column for runs in found.values() for column in runs})
    rows = []
    for row in table.rows:
        own = found.get(row.name, {})
        standard = found.get(row.name.replace(row.method.rpartition(", ")[0], "standard"), {})
        if row.method == "before training" or own.keys() != set(collections):
            continue
        values = [np.array(list(own[key].values())) for key in collections]
        both = [[run for run in own[key] if run in standard.get(key, {})] for key in collections]
        difference = ""
        if own is not standard and all(both):
            pairs = [(own[key], standard[key], runs) for key, runs in zip(collections, both, strict=True)]
            difference = mean_interval([np.array([a[run] - b[run] for run in runs]) for a, b, runs in pairs])
        numbers = sorted({len(each) for each in values})
        seeds = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
        means = [each.mean() for each in values]
        cells = [f"{mean:+.1f}" for mean in means]
        rows.append([row.method, seeds, *cells, mean_interval(values), difference, f"{min(means):+.1f}"])
    return ["loss, tau", "seeds", *collections, "mean", "minus standard", "worst"], rows
