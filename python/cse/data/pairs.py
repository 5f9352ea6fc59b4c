"""Labelled pairs and triples: the columns of a table, read as row-aligned corpora."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from . import readers
from .corpus import Corpus

__all__ = ["LabelledPairs", "open_pairs", "pair_columns"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelledPairs:
    """Labelled pairs, or triples with a hard negative; row i of each corpus belongs together."""

    anchors: Corpus
    positives: Corpus
    hard_negatives: Corpus | None = None

    @property
    def corpora(self) -> list[Corpus]:
        """The corpora of the columns, in their order."""
        return [each for each in (self.anchors, self.positives, self.hard_negatives) if each is not None]

    def complete(self) -> Rows:
        """Returns the rows without an empty cell, ascending; raises ``InputError`` if there are none."""
        filled = np.logical_and.reduce([corpus.word_counts() > 0 for corpus in self.corpora])
        rows: Rows = np.flatnonzero(filled)
        if not len(rows):
            raise InputError("--pairs: every row has an empty cell; at least one complete row is needed")
        return rows


def pair_columns(path: str, columns: Sequence[str]) -> list[str]:
    """Returns the names of the two or three columns to read.

    Without ``columns`` they are those of the table, which must have two or three. Raises ``InputError`` otherwise.
    """
    if columns:
        if len(columns) not in (2, 3) or len(set(columns)) != len(columns):
            raise InputError(
                f"--columns: {','.join(columns)} was given, and it must name two or three different columns: anchor, "
                "positive and optionally hard negative"
            )
        return list(columns)
    names = readers.column_names(path)
    if len(names) not in (2, 3):
        listed = ", ".join(names[:20])
        raise InputError(f"--pairs {path}: has {len(names)} columns; name two or three with --columns: {listed}")
    return names


def open_pairs(files: Sequence[str], columns: Sequence[str], **reading: Any) -> LabelledPairs:
    """Opens tables of labelled pairs.

    Args:
        files: Paths or patterns of csv, tsv, jsonl and parquet files with the same columns.
        columns: Names of the anchor, the positive and optionally the hard negative; empty: those of the first table.
        reading: Arguments of ``Corpus.open``.

    Raises:
        InputError: For a file that is not a table, or that lacks a column.
    """
    texts = [name for name in readers.expand(files) if not readers.is_table(name)]
    if texts:
        raise InputError(f"--pairs {texts[0]}: is not a table; give a .csv, .tsv, .jsonl or .parquet file")
    names = pair_columns(readers.expand(files)[0], columns)
    corpora = [Corpus.open(readers.resolve(files, name), **reading) for name in names]
    return LabelledPairs(*corpora)
