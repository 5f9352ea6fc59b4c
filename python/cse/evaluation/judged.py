"""Relevance judgements by a person, for a comparison of rankings: the pool of texts to judge, and the result.

The *pool* of a query holds the first texts of all rankings, each once (Spärck Jones and van Rijsbergen 1975, as in
TREC). A text outside the pool counts as not relevant, as in trec_eval.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np

from ..data import readers, tables
from ..data.corpus import Corpus
from ..errors import InputError, shown
from ..identity import row_keys
from ..io import dumps
from .base import Report, Sample
from .retrieval import ndcg
from .significance import CANNOT_TELL, adjust, compare, queries_needed

COLUMNS = ("query", "text", "relevant")
"""The columns of a file of judgements."""
SPREAD = 30.0
"""The standard deviation of the differences of queries, in points, before any is judged: between vectors and BM25, it
is 30 on CACM, 29 on StackFAQ and 18 on Cranfield."""
TARGET = 3.0
"""The number of queries is estimated that finds this difference in points of nDCG x 100."""

Rankings = Mapping[str, Sequence[str]]
"""Texts by query, best first, each text once."""
Key = tuple[int, int]
Judgements = Mapping[Key, int]
"""Relevance by the row keys of query and text (``cse.identity``)."""


def key_of(query: str, text: str) -> Key:
    one, other = row_keys([query, text]).tolist()
    return one, other


def pool(*sides: Rankings, seed: int = 0) -> dict[str, list[str]]:
    """Returns the texts of several rankings by query, texts and queries in a random order that others do not change."""

    def place(*words: str) -> bytes:
        return hashlib.sha256(dumps([seed, *words]).encode()).digest()

    return {
        query: sorted({text for side in sides for text in side[query]}, key=lambda text: place(query, text))
        for query in sorted(sides[0], key=place)
    }


def read_judgements(path: str | PathLike[str]) -> dict[Key, int]:
    """Reads a table with the columns ``COLUMNS``; rows whose last column is empty are left out."""
    columns = []
    names = tables.column_names(os.fspath(path))
    if missing := [name for name in COLUMNS if name not in names]:
        raise InputError(
            f"{path}: the first line must name the columns {', '.join(COLUMNS)}, and lacks {', '.join(missing)}"
        )
    for name in COLUMNS:
        rows = Corpus.read(readers.resolve(path, name, "--judged"))
        columns.append(rows.take(range(len(rows))))
    judgements: dict[Key, int] = {}
    for number, (query, text, relevance) in enumerate(zip(*columns, strict=True), 1):
        mark = relevance.strip().removesuffix(".0")
        if not mark:
            continue
        if not (mark.isascii() and mark.isdecimal()):
            raise InputError(
                f"{path}: row {number}: relevant must be 0, 1 or a larger integer, or empty, got {shown(mark)}"
            )
        if judgements.setdefault(key_of(query, text), int(mark)) != int(mark):
            raise InputError(f"{path}: row {number} judges a text of an earlier row differently; remove one of them")
    return judgements


def outcomes(first: Rankings, others: Sequence[Rankings], judgements: Judgements, depth: int) -> list[dict[str, Any]]:
    """Returns the ``outcome`` of the first ranking and each of the others, with p-values adjusted for all of them."""
    found = [outcome(first, other, judgements, depth) for other in others]
    compared = [each for each in found if each["comparison"] is not None]
    for each, record in zip(compared, adjust([each["comparison"] for each in compared]), strict=True):
        each["decided"] = record["verdict"] != CANNOT_TELL
    return found


def smallest_shown(queries: int) -> float:
    """Returns the difference in points of nDCG x 100 that is found with a probability of about 80 % if the differences
    of queries have the standard deviation ``SPREAD``, by the normal distribution."""
    from scipy.stats import norm

    return float((norm.ppf(0.975) + norm.ppf(0.8)) * SPREAD / math.sqrt(queries))


def outcome(old: Rankings, new: Rankings, judgements: Judgements, depth: int) -> dict[str, Any]:
    """Compares two rankings of ``depth`` texts by the judgements of the queries whose pools are judged completely.

    All judgements of a query count, even of texts that only other rankings found: its ideal ranking is made
    of them, and a query whose relevant texts neither ranking holds is compared, with a score of 0 for both.
    ``needed`` and ``needed_if_observed`` are the numbers of queries with a relevant text that find the difference
    ``TARGET``, or the observed one, with a probability of 80 %. ``comparison`` and what follows from it are None with
    fewer than two such queries.
    """
    pools, marks = pool(old, new), dict[int, dict[int, int]]()
    for (asked, found_text), mark in judgements.items():
        marks.setdefault(asked, {})[found_text] = mark
    complete = {
        query: {text: judgements[key_of(query, text)] for text in texts}
        for query, texts in pools.items()
        if all(key_of(query, text) in judgements for text in texts)
    }
    scored: dict[str, dict[Any, int]] = {}
    for query, found in complete.items():
        keys = {key_of(query, text)[1] for text in found}
        others = {key: mark for key, mark in marks.get(key_of(query, "")[0], {}).items() if key not in keys}
        if any(found.values()) or any(others.values()):
            scored[query] = {**found, **others}
    judged, cut = sum(map(len, complete.values())), min(depth, 10)
    result: dict[str, Any] = {"queries": len(pools), "complete": len(complete), "judgements": judged}
    result |= {"scored": len(scored), "comparison": None, "decided": False, "spread": None, "target": TARGET}
    result |= dict.fromkeys(("needed", "needed_if_observed", "more", "more_judgements"))
    if len(scored) < 2:
        return result
    a, b = (
        np.array([100 * ndcg(side[query], relevant, cut) for query, relevant in scored.items()]) for side in (old, new)
    )
    first, second = ([Report([], samples=[Sample(f"ndcg@{cut}", values)])] for values in (a, b))
    (record,), spread = adjust(compare(first, second, seeds=False)), float(np.std(b - a, ddof=1))
    result |= {"comparison": record, "decided": record["verdict"] != CANNOT_TELL, "spread": spread}
    if spread > 0:
        needed = queries_needed(TARGET, spread)
        more = math.ceil(max(0, needed - len(scored)) * len(complete) / len(scored))
        result |= {"needed": needed, "more": more, "more_judgements": round(more * judged / len(complete))}
        if abs(record["mean"]) > 1e-9 * spread:
            result["needed_if_observed"] = queries_needed(record["mean"], spread)
    return result
