"""Positives from labels: another row with the same label (supervised contrastive learning; Khosla et al. 2020).

Khosla et al. average over all rows of the batch that have the anchor's label; here, one positive is drawn from all rows
that have it, and the others of the batch are not negatives, so that every loss and every negative can be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np
import numpy.typing as npt
from annotated_types import Ge

from ..errors import InputError
from ..options import Opt
from .base import Draws, Edit, Example, Paired, Pairing, Rows

if TYPE_CHECKING:
    from ..context import TextContext

# Labels per text from which a column holds identifiers, and texts of a class below which labels hardly teach.
IDS, FEW = 0.9, 7


@dataclass(frozen=True)
class SameLabelOptions:
    """Options of positives with the same label."""

    others: Annotated[float, Ge(0), Opt("rows without a label in an epoch, as a multiple of those with one")] = 1.0
    most_lost: Annotated[
        float,
        Ge(0),
        Opt(
            "points of the score without labels (MRR of halves, or Spearman's correlation on --dev) that best/ may "
            "lose; 100: any number, for a classifier alone"
        ),
    ] = 1.0


def warning_of(column: str, counts: npt.NDArray[np.int64]) -> str:
    """Returns what to expect of so few texts of each class, or ""; raises ``InputError`` if there are no classes."""
    flag, texts, classes = f"--labels {column} --learn", counts.sum(), len(counts)
    if classes < 2:
        rows = "all rows to train on that have a label have the same" if classes else "no row to train on has a label"
        raise InputError(f"{flag}: {rows}; at least two labels are needed")
    if classes > IDS * texts:
        raise InputError(
            f"{flag}: the {texts:,} texts with a label have {classes:,} labels, nearly one each, as identifiers do; "
            "name a column of labels that several rows share"
        )
    few = np.median(counts)
    if few >= FEW:
        return ""
    return (
        f"{classes:,} labels have {few:g} texts each (median), and so few hardly teach in the default number of steps; "
        "label more rows, join similar labels, or try --max-steps 240"
    )


class SameLabel(Pairing):
    """The positive of a row with a label is another row with the same label, drawn anew in each epoch.

    Rows whose label no other text has count as rows without a label; these have the positives of ``rest``, or none.
    """

    Options = SameLabelOptions
    summary = "another row with the same label; other rows have the positives of --positive (--learn)"

    rest: Edit | Pairing | None = None
    """The method that makes the positives of the rows without a label."""

    def __init__(self, options: SameLabelOptions, context: TextContext) -> None:
        super().__init__(options, context)
        if context.classes is None:
            raise InputError("--positive same-label needs labels; use --labels COLUMN --learn instead")
        self.corpus, self.classes = context.corpus, context.classes.of_rows.copy()  # (N,) class of each row, -1: none
        rows = context.rows[self.classes[context.rows] >= 0]
        _, first, text = np.unique(self.corpus.row_keys()[rows], return_index=True, return_inverse=True)
        of_texts = self.classes[rows[first]]
        order = np.argsort(of_texts, kind="stable")
        self.members = rows[first[order]]  # one row of each text with a label, by class
        self.counts = np.bincount(
            of_texts, minlength=len(context.classes.names) + 1
        )  # of each class; the last one is 0
        self.starts = np.cumsum(self.counts) - self.counts
        self.place = np.full(len(self.classes), -1)  # (N,) position of the text of a row among the members
        self.place[rows] = np.argsort(order)[text]
        self.classes[self.counts[self.classes] < 2] = -1
        self.turns: Rows | None = None  # the rows without a label, in the order in which the epochs take them
        self.warning = warning_of(context.classes.column, self.counts[self.counts > 0])

    def describe(self) -> str:
        """Returns how many texts of how many classes teach."""
        counts = self.counts[self.counts > 1]
        return f"{counts.sum():,} texts with {len(counts):,} labels"

    def rows_of_epoch(self, rows: Rows, draws: Draws) -> Rows:
        """Returns the rows with a label, and ``others`` times as many of the others, which the epochs take in turn."""
        taught = self.classes[rows] >= 0
        others = rows[~taught]
        count = min(round(self.options.others * taught.sum()), len(others))
        if not count:
            return np.asarray(rows[taught])
        if self.turns is None:
            self.turns = others[np.argsort(Draws(draws.seed, 0).uniform(others, "turns")[:, 0], kind="stable")]
        turn = np.arange(draws.epoch * count, (draws.epoch + 1) * count) % len(others)
        return np.sort(np.append(rows[taught], self.turns[turn]))

    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> Paired:
        anchors, positives, mask = list(texts), list(texts), np.ones(len(rows), dtype=bool)
        classes = self.classes[rows]
        taught, others = np.flatnonzero(classes >= 0), np.flatnonzero(classes < 0)
        of = classes[taught]
        steps = (draws.uniform(rows[taught], "same label")[:, 0] * (self.counts[of] - 1)).astype(np.int64)
        start = self.starts[of]
        partners = start + (self.place[rows[taught]] - start + 1 + steps) % self.counts[of]
        for place, text in zip(taught.tolist(), self.corpus.take(self.members[partners]), strict=True):
            positives[place] = text
        if self.rest is None:
            mask[others] = False
        elif len(others):
            made = self.rest([texts[place] for place in others.tolist()], rows[others], draws)
            paired = made if isinstance(made, Paired) else Paired([texts[place] for place in others.tolist()], made)
            if paired.mask is not None:
                mask[others] = paired.mask
            for number, place in enumerate(others.tolist()):
                anchors[place] = paired.anchors[number]
                positives[place] = (paired.positives or paired.anchors)[number]
        return Paired(anchors, positives, None if mask.all() else mask, labels=classes)

    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        """Returns the rows with a label with their positives."""
        taught = self.classes[rows] >= 0
        return [each for each, shown in zip(super().examples(texts, rows, draws), taught, strict=True) if shown]
