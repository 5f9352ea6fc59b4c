"""Reads labelled pairs and triples: one corpus per column of a table, with aligned rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from . import readers
from .corpus import Corpus
from .pair_columns import ROLES, chosen_rows, pair_columns

__all__ = ["LabelledPairs", "open_pairs"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelledPairs:
    """Labelled pairs, or triples with a hard negative: row i of every corpus belongs to pair i."""

    anchors: Corpus
    positives: Corpus
    hard_negatives: Corpus | None = None
    chosen: npt.NDArray[np.bool_] | None = None
    """``(n,)`` bool, True for the rows that ``--where`` and ``--min-score`` select; None if all rows are used."""
    names: dict[str, str] = field(default_factory=dict)
    """Column names by role."""
    unused: list[str] = field(default_factory=list)
    """The columns of the first table that have no role."""

    @property
    def corpora(self) -> list[Corpus]:
        """The corpora in the order anchors, positives, hard negatives."""
        return [each for each in (self.anchors, self.positives, self.hard_negatives) if each is not None]

    def complete(self) -> Rows:
        """Returns the chosen rows in which no text is blank, ascending; raises ``InputError`` if there are none."""
        filled = np.logical_and.reduce([corpus.word_counts() > 0 for corpus in self.corpora])
        if self.chosen is not None:
            filled &= self.chosen
        rows: Rows = np.flatnonzero(filled)
        if not len(rows):
            raise InputError(
                "--pairs: every row (with --where or --min-score: every selected row) has an empty cell; at least one "
                "complete row is needed"
            )
        return rows

    @property
    def left_out(self) -> int:
        """Number of rows that are not chosen."""
        return 0 if self.chosen is None else int((~self.chosen).sum())

    def describe(self) -> str:
        """Returns a one-line description of the columns and rows that are used."""
        text = ", ".join(f"{role} {name!r}" for role, name in self.names.items())
        if self.unused:
            text += f"; unused: {', '.join(map(repr, self.unused[:20]))}"
        if self.chosen is not None:
            text += f"; {int(self.chosen.sum()):,} of {len(self.chosen):,} rows chosen"
        return text


def open_pairs(
    files: Sequence[str],
    columns: Sequence[str],
    where: str | None = None,
    min_score: float | None = None,
    **reading: Any,
) -> LabelledPairs:
    """Opens tables of labelled pairs.

    Args:
        files: Paths or patterns of csv, tsv, jsonl and parquet files with the same columns.
        columns: Names of the columns of anchor, positive and optionally hard negative; if empty, see ``pair_columns``.
        where: Condition that selects positive pairs, like ``label=1``; see ``chosen_rows``.
        min_score: Minimum score of a positive pair; see ``chosen_rows``.
        reading: Further arguments of ``Corpus.open``.

    Raises:
        InputError: If a file is not a table or lacks a column, or if ``pair_columns`` or ``chosen_rows`` raises it.
    """
    texts = [name for name in readers.expand(files) if not readers.is_table(name)]
    if texts:
        raise InputError(f"--pairs {texts[0]}: is not a table; give a .csv, .tsv, .jsonl or .parquet file")
    paths = readers.expand(files)
    names = pair_columns(paths[0], columns, where, min_score)
    chosen = None if where is None and min_score is None else chosen_rows(paths, where, min_score)
    corpora = [Corpus.open(readers.resolve(files, name), **reading) for name in names]
    if chosen is not None and len(chosen) != len(corpora[0]):
        raise InputError(
            f"--pairs {paths[0]}: {len(chosen):,} rows were read for --where or --min-score, but {len(corpora[0]):,} "
            "for the text; check the format of the table"
        )
    return LabelledPairs(
        corpora[0],
        corpora[1],
        corpora[2] if len(corpora) > 2 else None,
        chosen,
        dict(zip(ROLES, names, strict=False)),
        [name for name in readers.column_names(paths[0]) if name not in names],
    )
