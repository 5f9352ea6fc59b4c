"""The classes of the rows of a table, which a column of labels gives."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from .._core import collapsed
from ..errors import InputError
from . import readers, tables
from .corpus import Corpus
from .pairs import check_column

# Rows that are read to see whether a column looks like labels, and the length of its longest value.
SAMPLE_ROWS, LONGEST = 2000, 60


# A number, as text; those with leading zeros are codes. In the second group, zeros at the end are left out.
NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(?:\.([0-9]*?)0*)?")
# Cells that seem to hold several labels: joined by a bar, or a list.
SEVERAL = re.compile(r"[^|]+(\|[^|]+)+|\[.*\]", re.DOTALL)
# Number of labels that are listed.
SHOWN = 10
TRUE_OR_FALSE = {"true": "1", "false": "0"}
ADDED = ("predicted", "confidence", "second", "source")
"""The columns that ``cse predict`` adds, after the name of the column of labels or a prefix."""


def label_of(cell: str) -> str:
    """Returns the label that a cell of a table, as text, stands for; "" for none: blank, or ``NaN``, which is how
    programs write a missing number. Two labels are the same by the rule for texts (``cse.identity``), but for the case
    of letters. Equal numbers, true and 1, and false and 0 are one label, because the type of a column depends on the
    program that wrote it; so are lists with the same parts in another order."""
    label = unicodedata.normalize("NFC", collapsed(cell))
    if label.lower() == "nan":
        return ""
    if number := NUMBER.fullmatch(label):
        whole, rest = number[1], number[2]
        return f"{whole}.{rest}" if rest else whole.removeprefix("-") if whole == "-0" else whole
    if label[:1] == "[" and label[-1:] == "]":
        return f"[{', '.join(sorted(part.strip() for part in label[1:-1].split(',')))}]"
    return TRUE_OR_FALSE.get(label.lower(), label)


@dataclass(frozen=True)
class Classes:
    """The classes of the rows of a corpus."""

    column: str
    names: list[str]
    of_rows: npt.NDArray[np.int64]
    """``(N,)`` position in ``names`` of the label of each row; -1: none."""
    values: list[Any] = field(default_factory=list)
    """The first cell of each label, with its spelling and type: text, an integer, a number or a truth value."""
    two: int = 0
    """Number of texts that occur with two labels, and so have none."""
    has_two: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    """``(N,)`` whether the text of each row is one of these."""

    def only(self, rows: npt.NDArray[np.int64]) -> Classes:
        """Returns the classes in which only these rows have a label."""
        of_rows = np.full_like(self.of_rows, -1)
        of_rows[rows] = self.of_rows[rows]
        return replace(self, of_rows=of_rows)

    def describe(self, rows: npt.NDArray[np.int64], fewest: int) -> list[str]:
        """Returns sentences about the labels of some rows, of different texts: the classes with their numbers, those
        with fewer than ``fewest``, rows without a label, and cells that seem to hold several."""
        counts = np.bincount(self.of_rows[rows][self.of_rows[rows] >= 0], minlength=len(self.names))
        order = [place for place in np.argsort(-counts, kind="stable").tolist() if counts[place]]
        listed = ", ".join(f"{self.names[place]} {counts[place]:,}" for place in order[:SHOWN])
        more = f" and {len(order) - SHOWN:,} more" if len(order) > SHOWN else ""
        largest = counts.max(initial=0) / max(counts.sum(), 1)
        lines = [f"{len(order):,} labels: {listed}{more}; the most frequent one has {largest:.1%} of the rows"]
        none, rare = int((self.of_rows[rows] < 0).sum()), int(counts[counts < fewest].sum())
        if none or rare:
            lines.append(f"rows without a label, or with two: {none:,}; with a label of fewer than {fewest}: {rare:,}")
        several = [place for place in order if SEVERAL.fullmatch(self.names[place])]
        if several:
            lines.append(
                f"{int(counts[several].sum()):,} cells seem to hold several labels, such as "
                f"{self.names[several[0]]!r}; each different cell is one label"
            )
        return lines


def read_classes(corpus: Corpus, column: str, flag: str, given: bool = False) -> Classes:
    """Reads a column of labels of the tables of a corpus; an error if there is none begins with ``flag``. With
    ``given``, labels that ``cse predict`` has predicted are refused: they neither judge nor teach."""
    if others := [file.path for file in corpus.files if file.column is None]:
        raise InputError(
            f"{flag}: {others[0]} is not a table with such a column; name a table, and --column of its text"
        )
    paths = [readers.find_again(file.path) for file in corpus.files]
    for path in paths:
        check_column(path, flag, column, corpus.max_line_bytes)
        prefix, _, kind = column.rpartition(" ")
        if given and kind == ADDED[0] and f"{prefix} {ADDED[-1]}" in tables.plain_columns(path):
            raise InputError(
                f"{flag}: these labels of {path} were predicted by cse predict, so that they can neither judge nor "
                "teach; name the column of the labels that were given or, if you have checked all, rename the column"
            )
    cells = (tables.raw_values(path, column, corpus.max_line_bytes) for path in paths)
    return classes_of(corpus, column, chain.from_iterable(cells))


def classes_of(corpus: Corpus, column: str, labels: Iterable[Any]) -> Classes:
    """Returns the classes of the rows of a corpus from their labels, of any type, None or "" for none. Rows with the
    same text have the same class: none if the text is blank, occurs with two labels or only without one."""
    values: list[str] = []
    spelled: dict[str, Any] = {}
    for cell in labels:
        shown = tables.as_text(cell)
        values.append(label_of(shown))
        spelled.setdefault(values[-1], cell if isinstance(cell, (bool, int, float)) else shown.strip())
    names = sorted({*values} - {""})
    number = {name: place for place, name in enumerate(names)} | {"": -1}
    of_values = np.array([number[value] for value in values], dtype=np.int64)
    rows, of_rows = corpus.filled(), np.full(len(values), -1)
    hashes, text = np.unique(corpus.row_keys()[rows], return_inverse=True)
    lowest, highest = np.full(len(hashes), len(names)), np.full(len(hashes), -1)
    given = of_values[rows] >= 0
    np.minimum.at(lowest, text[given], of_values[rows[given]])
    np.maximum.at(highest, text[given], of_values[rows[given]])
    of_rows[rows] = np.where(lowest == highest, lowest, -1)[text]
    two, has_two = (lowest != highest) & (highest >= 0), np.zeros(len(values), dtype=bool)
    has_two[rows] = two[text]
    return Classes(column, names, of_rows, [spelled[name] for name in names], int(two.sum()), has_two)


def likely_labels(corpus: Corpus) -> dict[str, int]:
    """Returns the other columns of a table that look like labels, with their numbers of values: 2 to 100 short values
    in its first rows, each of which has five rows on average."""
    found: dict[str, int] = {}
    file = corpus.files[0]
    path = readers.find_again(file.path)
    names = [] if file.column is None else tables.plain_columns(path)
    for name in names[:100] if len(set(names)) == len(names) else []:
        values = _short_values(path, name) if name != file.column else []
        distinct = set(values)
        if 2 <= len(distinct) <= min(100, len(values) // 5):
            found[name] = len(distinct)
    return found


def _short_values(path: str, name: str) -> list[str]:
    """Returns the first values of a column that are not blank; none if one is long, or cannot be read."""
    values = []
    try:
        for value in map(str.strip, islice(tables.column_values(path, name), SAMPLE_ROWS)):
            if len(value) > LONGEST:
                return []
            if value:
                values.append(value)
    except InputError:
        return []
    return values
