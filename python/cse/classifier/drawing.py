"""Rows to label, drawn at random from those without a label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..data.classes import read_classes
from ..data.corpus import Corpus
from ..data.written import Table
from ..errors import InputError
from ..evaluation.labels import distinct


def drawn_first(corpus: Corpus, table: Table, count: int, column: str, seed: int) -> Table:
    """Returns the table of a corpus with ``count`` rows first that have no label in a column, which is added if the
    table has none; the others follow, in their order. Of equal texts, the first row can be drawn; blank rows cannot.
    Raises ``InputError`` if there are fewer rows."""
    free = distinct(corpus)
    if column in table.names:
        classes = read_classes(corpus, column, f"--labels {column}")
        free = free[(classes.of_rows[free] < 0) & ~classes.has_two[free]]
    if len(free) < count:
        raise InputError(f"-n {count}: only {len(free):,} rows with different texts have no label; draw fewer")
    chosen = np.zeros(len(corpus), dtype=bool)
    chosen[np.random.default_rng(seed).choice(free, count, replace=False)] = True
    if column not in table.names:
        import pyarrow as pa

        table = table.with_columns({column: pa.string()}, lambda: ([None] for _ in range(len(corpus))))

    def ordered() -> Iterator[Sequence[Any]]:
        for wanted in (True, False):
            yield from (row for row, own in zip(table.rows(), chosen, strict=True) if own == wanted)

    return Table(table.names, ordered, table.schema)
