"""Prints the tables of ``cse reproduce``: as text or JSON and, if wanted, to files of CSV, LaTeX and plots."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cse.cli import printing
from cse.io import write_text

from .effects import Laboratory
from .effects_tables import Results, chosen_by, order_panel, small_panel, small_table, tables_of
from .published import changes_on_documents, flat, markdown, panels, shown_rows, to_dict
from .scores import Records
from .tables import Printed, Row, Table

if TYPE_CHECKING:
    from cse.reports.style import Panel

    from .work import Plan

# A number at the beginning of a cell, and its interval.
NUMBER = re.compile(r"\**([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)(?![\w.])(?: \[([+-]?[\d.]+), ([+-]?[\d.]+)\])?")


@dataclass(frozen=True)
class Shown:
    """How the results of a command are shown besides as text."""

    as_json: bool = False
    csv: str | None = None
    latex: str | None = None
    picture: str | None = None

    def write(
        self,
        tables: Mapping[str, Printed],
        panels: Callable[[], Sequence[Panel]],
        printed: Mapping[str, Printed] | None = None,
    ) -> None:
        """Writes the tables, by title, and the panels to files, if wanted; for LaTeX, ``printed`` if it is given."""
        if self.csv is not None:
            write_text(self.csv, csv_of(tables))
            printing.say(f"wrote {self.csv}")
        if self.latex is not None:
            write_text(self.latex, latex_of(tables if printed is None else printed))
            printing.say(f"wrote {self.latex}")
        if self.picture is not None:
            from cse.reports.style import write

            write(panels(), Path(self.picture))
            printing.say(f"wrote {self.picture}")


def csv_of(tables: Mapping[str, Printed]) -> str:
    """Returns the cells of tables as CSV: the title of the table, the number of the row and its first cell, the name of
    the column; the number in the cell, if it begins with one, and its interval, if it has one; and the cell as it is
    printed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["table", "number", "row", "column", "value", "low", "high", "text"])
    for title, (head, rows) in tables.items():
        for number, row in enumerate(rows, 1):
            for column, cell in zip(head[1:], row[1:], strict=True):
                found = NUMBER.match(cell)
                writer.writerow([title, number, row[0], column, *(found.groups("") if found else [""] * 3), cell])
    return text.getvalue()


def latex_of(tables: Mapping[str, Printed]) -> str:
    """Returns tables for LaTeX with the package booktabs."""
    parts = []
    for title, (head, rows) in tables.items():
        lines = [" & ".join(map(_for_latex, row)) + r" \\" for row in (head, *rows)]
        parts += [
            f"% {title}",
            rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    return "\n".join(parts)


def _for_latex(cell: str) -> str:
    bold = re.fullmatch(r"\*\*(.*)\*\*", cell)
    text = re.sub(r"([&%$#_{}])", r"\\\1", bold[1] if bold else cell)
    text = text.replace("^", r"\^{}").replace("~", r"\~{}")
    return rf"\textbf{{{text}}}" if bold else text


def show_domain(table: Table, sets: Mapping[str, Records], shown: Shown) -> None:
    """Prints the changes of the losses on documents for sets of records."""
    head, rows = changes_on_documents(table, sets)
    printing.result({"columns": head, "rows": rows}, shown.as_json, lines_of(head, rows))
    shown.write({table.name: (head, rows)}, list)


def show_laboratory(
    lab: Laboratory, sets: Mapping[str, Records], shown: Shown, others: Mapping[str, Records] = {}
) -> None:
    """Prints the tables of the laboratory for sets of records, and comparisons with ``others`` across devices."""
    tables = tables_of(lab, sets, others)
    remarks = {name: chosen_by(Results(lab, records)) for name, records in sets.items()}
    lines = [line for title, table in tables.items() for line in (f"### {title}", "", *lines_of(*table), "")]
    lines += [f"{name}: {remark}" if name else remark for name, remark in remarks.items() if remark]
    found = {title: {"columns": head, "rows": rows} for title, (head, rows) in tables.items()}
    printing.result({"tables": found, "selection": remarks}, shown.as_json, lines)
    shown.write(tables, lambda: [order_panel(Results(lab, records), name) for name, records in sets.items()])


def show_small(results: Results, steps: int, shown: Shown) -> None:
    """Prints the table of ``--small``."""
    small = results.lab.small
    head, rows = small_table(results)
    note = small.note.format(steps=steps, judged=small.judged)
    found = {"small": True, "note": note, "tables": {small.title: {"columns": head, "rows": rows}}}
    printing.result(found, shown.as_json, [f"### {small.title}", "", *lines_of(head, rows), "", note])
    shown.write({small.title: (head, rows)}, lambda: [small_panel(results, note)])


def show_published(table: Table, rows: Sequence[Row], chosen: Plan, shown: Shown) -> None:
    """Prints published values and ours."""
    values = to_dict(table, rows, chosen.stored, chosen.notes)
    given = table, rows, chosen.stored
    printing.result(values, shown.as_json, [markdown(*given, chosen.notes)])
    printed = {table.name: shown_rows(*given, chosen.notes)}
    shown.write({table.name: flat(values)}, lambda: panels(*given), printed)


def lines_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---", *["---:"] * (len(head) - 1)], *rows)]
