"""Labelled pairs, with or without hard negatives: one corpus per column of a table, with aligned rows."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, shortened
from . import readers, tables
from .corpus import Corpus, Split

ROLES = ("anchor", "positive", "hard negative")
# Names of columns by role, compared without regard to case.
NAMES = {
    "anchor": "anchor query question premise sentence1 sentence_a sent0 question1 text1 title",
    "positive": "positive answer passage document entailment hypothesis sentence2 sentence_b sent1 question2 text2 "
    "body abstract",
    "hard negative": "negative contradiction hard_negative hard_neg neg",
    "label": "label labels gold_label entailment_label entailment_judgment is_duplicate",
    "score": "score gold_score similarity similarity_score relatedness_score",
}
ROLE_OF = {name: role for role, names in NAMES.items() for name in names.split()}
"""Role of a column, or ``label`` or ``score``, by its name in lower case."""
SAMPLE_ROWS = 1000
# If all values of a column are among these words, it is taken to mark which rows are positive pairs.
_POSITIVE = "yes y true t positive pos match duplicate related relevant correct similar same entailment 1"
_NEGATIVE = "no n false f negative neg mismatch unrelated irrelevant incorrect dissimilar different neutral 0 -1"
POSITIVE_MARKS = frozenset(_POSITIVE.split())
MARKS = POSITIVE_MARKS | {*_NEGATIVE.split(), "contradiction"}
NUMBER = re.compile(r"[_-]?\d+$")


def role_of(name: str) -> str | None:
    role = ROLE_OF.get(name.lower())
    stem = ROLE_OF.get(NUMBER.sub("", name.lower()))
    return role or (stem if stem == "hard negative" else None)


def pair_columns(path: str, columns: Sequence[str], where: str | None = None, selected: bool = False) -> list[str]:
    """Returns the names of the columns to read: anchor, positive and any number of hard negatives.

    Without ``columns``, the roles follow from the column names (``NAMES``). ``selected`` tells whether ``--where`` or
    ``--min-score`` selects the rows that are positive pairs.
    """
    if columns:
        if len(columns) < 2 or len(set(columns)) != len(columns):
            raise InputError(
                f"--columns must name two or more different columns (anchor, positive and optionally hard negatives), "
                f"got {','.join(columns)}"
            )
        return list(columns)
    names = tables.column_names(path)

    def refused(fault: str, what: str = "the columns of text") -> InputError:
        listed = ", ".join(shortened(name, 60) for name in names[:20])
        where = "the first line names the columns" if tables.has_header_line(path) else "the columns are"
        return InputError(f"--pairs {path}: {fault} name {what} with --columns; {where}: {listed}")

    def unselected(name: str, example: str) -> InputError:
        return refused(f"column {name!r} marks which rows are positive pairs; select them with {example}, or")

    by_role: dict[str | None, list[str]] = {}
    for name in names:
        identifier = name.lower() in ("id", "idx") or name.lower().endswith("_id")
        if not identifier and name != (where or "").partition("=")[0]:
            by_role.setdefault(role_of(name), []).append(name)
    for role, example in (("label", "--where {}=1"), ("score", "--min-score 4")):
        if role in by_role and not selected:
            raise unselected(by_role[role][0], example.format(by_role[role][0]))
    others = by_role.get(None, [])
    # Duplicate names are rejected on reading. The file is opened for each column, so only the first ones are read.
    for name in others[:100] if len(set(names)) == len(names) else []:
        values = [text for text in islice(tables.column_values(path, name), SAMPLE_ROWS) if text.strip()]
        marks = dict.fromkeys(text.strip() for text in values)
        if marks and where is None and all(mark.lower() in MARKS for mark in marks):
            chosen = next((mark for mark in marks if mark.lower() in POSITIVE_MARKS), values[0].strip())
            raise unselected(name, f"--where {name}={chosen}")
        if 2 * sum(map(is_number, values)) > len(values):
            raise refused(f"most of the first rows of column {name!r} are numbers;")
    for role in ROLES:
        same = by_role.get(role, [])
        numbered = role == "hard negative" and len({NUMBER.sub("", name.lower()) for name in same}) == 1
        if len(same) > 1 and not numbered:
            raise refused(f"columns {' and '.join(same)} may both be the {role};", "two or three")
    for role in ROLES[:2]:
        if role not in by_role:
            known = ", ".join(NAMES[role].split()[:3])
            fault = f"no column has a name for the {role} ({known}, ...); rename the columns, or"
            raise refused(fault, "anchor, positive and any hard negatives")
    return [by_role[role][0] for role in ROLES if role in by_role] + by_role.get("hard negative", [])[1:]


def chosen_rows(files: Sequence[str], where: str | None, min_score: float | None) -> tuple[npt.NDArray[np.bool_], str]:
    """Returns a mask of the rows of the tables that satisfy both conditions, ``(n,)`` bool, and a note on ``where``.

    ``where`` is ``COLUMN=VALUE``, which ``_equal`` compares. Rows with a blank score are not selected.
    """
    chosen, note = np.array([True]), ""
    if where is not None:
        column, _, value = where.partition("=")
        if not column or not value:
            raise InputError(f"--where must be COLUMN=VALUE, like label=1, got {where!r}")
        chosen, note = _equal(values_of(files, "--where", column), value)
        if not chosen.any():
            seen = list(dict.fromkeys(cell[:40] for cell in values_of(files, "--where", column)))[:10]
            raise InputError(f"--where {where}: no row has this value; the first distinct values are {', '.join(seen)}")
    if min_score is not None:
        scores = [name for name in tables.column_names(files[0]) if ROLE_OF.get(name.lower()) == "score"]
        if len(scores) != 1:
            raise InputError(
                f"--min-score: {files[0]} has {len(scores)} columns of scores; exactly one column must "
                f"have one of the names {', '.join(NAMES['score'].split())}"
            )
        kept = []
        for number, text in enumerate(values_of(files, "--min-score", scores[0]), start=1):
            score = number_of(text)
            if score is None and text.strip():
                raise InputError(f"--min-score: row {number} of column {scores[0]} is {text[:40]!r}, not a number")
            kept.append(score is not None and score >= min_score)
        chosen = chosen & np.array(kept, dtype=bool)
        if not chosen.any():
            raise InputError(
                f"--min-score {min_score:g}: no row{' selected by --where' if where else ''} has at least this "
                "score; give a lower one"
            )
    return chosen, note


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def number_of(text: str) -> float | None:
    """Returns the finite number that a text stands for; None for another text.

    Digits joined by ``_`` are a code, and float64 does not tell digits of 2**53 or more apart; both are no numbers.
    """
    if not is_number(text) or "_" in text:
        return None
    value = float(text)
    return value if abs(value) < 2**53 or "e" in text.lower() else None


# How --where compares a cell with the value. The first comparison in which a row is equal selects the rows.
COMPARISONS: dict[str, Callable[[str], str | float | None]] = {
    "as text": str.strip,
    "but for case": lambda text: text.strip().lower(),
    "as a number": number_of,
}


def _equal(cells: Iterable[str], wanted: str) -> tuple[npt.NDArray[np.bool_], str]:
    """Returns a mask of the cells that are equal to ``wanted``, and how many others a later comparison would add."""
    known = [(key, key(wanted)) for key in COMPARISONS.values()]
    other = len(known)

    def place(cell: str) -> int:
        return next((n for n, (key, value) in enumerate(known) if value is not None and key(cell) == value), other)

    places = np.fromiter(map(place, cells), dtype=np.uint8)
    first = int(places.min(initial=other))
    counts = zip(COMPARISONS, np.bincount(places, minlength=other).tolist(), strict=False)
    more = [
        f"{count:,} more {'is' if count == 1 else 'are'} equal {how}" for how, count in [*counts][first + 1 :] if count
    ]
    return (places == first) & (first < other), ", ".join(more)


def values_of(
    files: Sequence[str], option: str, column: str, max_line_bytes: int = tables.MAX_LINE_BYTES
) -> Iterator[str]:
    for path in files:
        check_column(path, option, column, max_line_bytes)
        yield from tables.column_values(path, column, max_line_bytes)


def check_column(path: str, option: str, column: str, max_line_bytes: int = tables.MAX_LINE_BYTES) -> None:
    """Raises ``InputError`` unless exactly one column of a table has this name."""
    names = tables.column_names(path, column, most=max(tables.MOST, max_line_bytes))
    if (count := names.count(column)) != 1:
        has = f"has {count} columns" if count else "has no column"
        raise InputError(f"{option}: {path} {has} {column!r}; its columns are: {', '.join(names[:20])}")


Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LabelledPairs:
    """Labelled pairs, with any number of hard negatives: row i of every corpus belongs to pair i."""

    anchors: Corpus
    positives: Corpus
    hard_negatives: Sequence[Corpus] = ()
    chosen: npt.NDArray[np.bool_] | None = None
    """``(n,)`` bool, True for the rows that ``--where`` and ``--min-score`` select; None if all rows are used."""
    names: dict[str, str] = field(default_factory=dict)
    """Column names by role."""
    unused: list[str] = field(default_factory=list)
    note: str = ""
    """How many more rows ``--where`` would select in another comparison."""
    usable: Sequence[npt.NDArray[np.bool_]] = ()
    """``(n,)`` bool for each column of hard negatives, False for texts of held-out rows; empty if all are used."""

    @property
    def corpora(self) -> list[Corpus]:
        return [self.anchors, self.positives, *self.hard_negatives]

    def complete(self) -> Rows:
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

    def without(self, split: Split) -> LabelledPairs:
        """Returns the pairs without the hard negatives that are texts of held-out rows; see ``hold_out``."""
        held = np.concatenate([corpus.row_keys()[split.held_out] for corpus in self.corpora[:2]])
        held = np.setdiff1d(held, split.common)
        return replace(self, usable=[~np.isin(corpus.row_keys(), held) for corpus in self.hard_negatives])

    @property
    def left_out(self) -> int:
        return 0 if self.chosen is None else int((~self.chosen).sum())

    def describe(self) -> str:
        text = ", ".join(f"{role} {name!r}" for role, name in self.names.items())
        if self.unused:
            text += f"; unused: {', '.join(map(repr, self.unused[:20]))}"
        if self.chosen is not None:
            text += f"; {int(self.chosen.sum()):,} of {len(self.chosen):,} rows chosen"
            text += f" ({self.note})" if self.note else ""
        return text


def open_pairs(
    files: Sequence[str],
    columns: Sequence[str],
    where: str | None = None,
    min_score: float | None = None,
    **reading: Any,
) -> LabelledPairs:
    paths = readers.expand(files)
    selected = where is not None or min_score is not None
    names = pair_columns(paths[0], columns, where, selected)
    chosen, note = chosen_rows(paths, where, min_score) if selected else (None, "")
    corpora = [Corpus.open([tables.Column(path, name) for path in paths], **reading) for name in names]
    return LabelledPairs(
        corpora[0],
        corpora[1],
        corpora[2:],
        chosen,
        dict(zip([*ROLES, *(f"hard negative {number}" for number in range(2, len(names)))], names, strict=False)),
        [name for name in tables.column_names(paths[0]) if name not in names],
        note,
    )
