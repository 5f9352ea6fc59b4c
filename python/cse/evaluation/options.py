"""Options of the evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from ..options import Opt

MOST_ROWS = 2000
"""Most rows that are judged by their labels."""


@dataclass(frozen=True)
class STSOptions:
    allow_partial: Annotated[
        bool, Opt("accept incomplete files; the average is given only if all seven test sets are complete")
    ] = False


@dataclass(frozen=True)
class SplitHalfOptions:
    limit: Annotated[int, Ge(2), Opt("maximum number of sentences; the first ones in the corpus are used")] = 2000
    column: Annotated[str | None, Opt("column that holds the sentences, if the corpus is a table")] = None


@dataclass(frozen=True)
class LabelsOptions:
    labels: Annotated[str | None, Opt("column that holds the labels")] = None
    column: Annotated[str | None, Opt("column that holds the sentences")] = None
    rows: Annotated[int, Ge(2), Opt("maximum number of rows; those whose texts have the smallest hashes are used")] = (
        MOST_ROWS
    )
    share: Annotated[
        float, Gt(0), Le(1), Opt("fraction of the rows; 0.2: those that cse train --labels holds out from this file")
    ] = 1.0


@dataclass(frozen=True)
class RetrievalOptions:
    split: Annotated[str, Opt("name of the judgements file in qrels/, without .tsv")] = "test"
    passages: Annotated[
        int | None,
        Ge(0),
        Opt(
            "cut documents into passages of at most N tokens (0: the model's maximum); a document "
            "gets the score of its best passage"
        ),
    ] = None
    same_id: Annotated[
        Literal["auto", "keep", "drop"],
        Opt(
            "drop: leave the document with the id of the query out of its ranking; auto: only if most of "
            "these documents contain the text of the query"
        ),
    ] = "auto"
