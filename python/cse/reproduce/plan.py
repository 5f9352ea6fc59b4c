"""Determines which cells of a table (see ``cells``) are stored, which are to be run, and why the rest are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cells import Cell, cells_of, read_cell
from .inputs import Inputs
from .suites import Scorer
from .tables import Row, Table

__all__ = ["Plan", "plan"]


@dataclass
class Plan:
    """The cells of some rows of a table."""

    stored: dict[str, list[dict[str, Any]]]
    """Stored cells by the name of the row."""
    wanted: list[Cell]
    """Cells to be run, in order."""
    notes: dict[str, str]
    """Why cells of a row are neither stored nor run, by the name of the row."""

    def add(self, cell: Cell, record: dict[str, Any]) -> None:
        """Adds the record of a cell that has been run and stored."""
        self.stored.setdefault(cell.row.name, []).append(record)


def plan(table: Table, rows: Sequence[Row], seeds: Sequence[int], inputs: Inputs, scorer: Scorer, place: Path) -> Plan:
    """Returns the plan for some rows; raises ``InputError`` for cells that were stored with other settings."""
    found = Plan({}, [], {row.name: "published only" for row in rows if not row.recipes})
    for cell in cells_of(table, rows, seeds):
        lacks = cell.lacks(inputs)
        if lacks is not None:
            found.notes[cell.row.name] = f"needs {lacks}"
            continue
        record = read_cell(cell, inputs, scorer, place)
        if record is None:
            found.wanted.append(cell)
        else:
            found.add(cell, record)
    return found
