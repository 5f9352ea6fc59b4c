"""Relevance judgements by a person, for a comparison of two rankings: pools, the file of judgements, and estimates.

The *pool* of a query holds the first ``depth`` documents of both rankings, each once (pooling: Spärck Jones and van
Rijsbergen 1975, as in TREC). Only the pool is judged. A document without a judgement, because it is outside the pool or
was skipped, counts as not relevant, as in trec_eval and in ``cse eval --suite retrieval``; it is not removed from the
ranking, as it would be in a condensed list (Sakai 2007). As the pool contains the first documents of both rankings,
the assumption affects the difference of these two only through documents that were skipped, and through the ideal
ranking of nDCG, which is that of the relevant documents in the pool. A third ranking has documents outside the pool,
and its score is too low until these are judged as well.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError
from ..io import LineFile, dumps, parse_json
from ..rng import Draws
from .base import Report, Sample
from .retrieval import ndcg
from .significance import adjust, compare, queries_needed

# The median time of the last RECENT judgements, of which there must be TIMED, estimates the time of the next ones.
RECENT, TIMED = 50, 3

Key = tuple[str, str]
"""The ids of a query and a document."""


class Pool(NamedTuple):
    """The id of a query, and the ids of the documents to judge for it, in the order in which they are shown."""

    query: str
    documents: tuple[str, ...]


def pool(
    old: Mapping[str, Sequence[int]], new: Mapping[str, Sequence[int]], ids: Sequence[str], depth: int, seed: int
) -> list[Pool]:
    """Returns the pools of all queries, in random order, each with its documents in random order.

    The place of a query depends on the seed and its number, and the place of a document on the seed, the number of the
    query and the row of the document. The order therefore says nothing about the ranking that a document comes from,
    and queries judged first are a random sample of all.

    Args:
        old: For each query id, the rows of the documents that the first encoder ranks highest, best first.
        new: The same for the second encoder, with the same queries.
        ids: The id of each row.
        depth: Number of documents taken from each ranking.
        seed: Seed of the order.
    """
    pools = []
    for number, query in enumerate(old):
        rows = np.unique(np.array([*old[query][:depth], *new[query][:depth]], dtype=np.int64))
        keys = Draws(seed, number).uniform(rows, "order of documents to judge")[:, 0]
        pools.append(Pool(query, tuple(ids[row] for row in rows[np.argsort(keys, kind="stable")])))
    keys = Draws(seed, 0).uniform(np.arange(len(pools)), "order of queries to judge")[:, 0]
    return [pools[number] for number in np.argsort(keys, kind="stable")]


class Judgements:
    """Judgements in a file that is only appended to: one JSON object per line, written to the disk at once.

    A line holds ``query``, ``document``, ``relevant`` (true, false, or null for skipped) and ``seconds`` (time that the
    judgement took); or ``query``, ``document`` and ``undone``, which takes back the judgement. A line that a
    killed process or a full disk left incomplete is removed. The file is created if it does not exist, and is locked
    while it is open.

    Raises ``InputError`` if a line is invalid, or another process has opened the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.changes = path, 0
        self.values: dict[Key, bool | None] = {}
        """The judgements, in the order in which they were made."""
        self.seconds: list[float] = []
        self._file = LineFile(path, f"{path}: another cse label has opened it; end that one first")
        try:
            for number, line in enumerate(self._file.lines, 1):
                try:
                    self._apply(parse_json(line, dict[str, Any], path))
                except (ValueError, KeyError, TypeError, OverflowError):
                    raise InputError(f"{path}: line {number} is not a judgement; remove the line") from None
        except BaseException:
            self.close()
            raise

    def _apply(self, record: dict[str, Any]) -> None:
        key = record["query"], record["document"]
        if "undone" in record:
            del self.values[key]
        elif record["relevant"] not in (True, False, None):
            raise ValueError("relevant must be true, false or null")
        else:
            self.seconds.append(float(record["seconds"]))
            self.values.pop(key, None)  # the last judgement comes last
            self.values[key] = record["relevant"]
        self.changes += 1

    def add(self, key: Key, **record: Any) -> None:
        """Stores a judgement (``relevant`` and ``seconds``), or takes it back (``undone``)."""
        record = {"query": key[0], "document": key[1], **record}
        self._file.append(dumps(record).encode())
        self._apply(record)

    def typical_seconds(self) -> float | None:
        """Returns the median time of the last judgements; None if there are too few."""
        return statistics.median(self.seconds[-RECENT:]) if len(self.seconds) >= TIMED else None

    def close(self) -> None:
        self._file.close()


class Session:
    """Shows the documents of all pools one after another, and stores the answers.

    Args:
        pools: The pools, in the order in which they are judged.
        queries: Text of each query.
        texts: Text of each document in the pools.
        judgements: The judgements; documents that it holds already are not shown.
    """

    def __init__(
        self, pools: Sequence[Pool], queries: Mapping[str, str], texts: Mapping[str, str], judgements: Judgements
    ) -> None:
        self.pools, self.queries, self.texts, self.judgements = pools, queries, texts, judgements
        self._places = {
            (entry.query, document): f"query {number} of {len(pools)}, document {place} of {len(entry.documents)}"
            for number, entry in enumerate(pools, 1)
            for place, document in enumerate(entry.documents, 1)
        }
        self._shown: Key | None = None
        self._since = 0.0

    @property
    def left(self) -> int:
        """Number of documents that are not judged."""
        return sum(key not in self.judgements.values for key in self._places)

    def _next(self) -> Key | None:
        return next((key for key in self._places if key not in self.judgements.values), None)

    def current(self) -> dict[str, str] | None:
        """Returns ``query``, ``document`` (texts) and ``progress`` of the next document; None if all are judged.

        Nothing in it depends on the ranking that the document comes from.
        """
        key = self._next()
        if key is None:
            return None
        if self._shown != key:
            self._shown, self._since = key, time.monotonic()
        progress, seconds = self._places[key], self.judgements.typical_seconds()
        if seconds is not None:
            minutes = math.ceil(self.left * seconds / 60)
            progress += f", {minutes:,} minute{'s' if minutes != 1 else ''} left"
        return {"query": self.queries[key[0]], "document": self.texts[key[1]], "progress": progress}

    def press(self, key: str) -> bool:
        """Applies a key: y, n and s judge the current document, u takes back the last judgement of these pools.

        Other keys have no effect. Returns False for q, which ends the session.
        """
        if key in ("y", "n", "s") and (shown := self._next()) is not None:
            seconds = time.monotonic() - self._since if self._shown == shown else 0.0
            relevant = {"y": True, "n": False, "s": None}[key]
            self.judgements.add(shown, relevant=relevant, seconds=round(seconds, 2))
        elif key == "u":
            last = next((judged for judged in reversed(self.judgements.values) if judged in self._places), None)
            if last is not None:
                self.judgements.add(last, undone=True)
                self._shown = None
        return key != "q"


def outcome(
    pools: Sequence[Pool],
    judgements: Mapping[Key, bool | None],
    old: Mapping[str, Sequence[str]],
    new: Mapping[str, Sequence[str]],
    depth: int,
    target: float,
    seconds: float | None = None,
) -> tuple[dict[str, dict[str, int]], dict[str, Any]]:
    """Compares two rankings by the judgements of the queries whose pools are complete.

    Args:
        pools: The pools.
        judgements: True, False or None (skipped) for pairs of a query and a document.
        old: For each query, the ids of the documents of the first ranking, best first.
        new: The same for the second ranking.
        depth: Depth of the pools; nDCG is cut at the rank 10, or at the depth if it is less.
        target: A difference in points of nDCG x 100; the number of queries that would find it is estimated.
        seconds: Time of a judgement, for the estimate of the time; None: unknown.

    Returns:
        The judgements of the complete queries, 1 or 0 by query and document, without skipped documents; and the result:

        - ``queries``, ``complete``, ``judgements``: numbers of queries, of those whose documents are all judged or
          skipped, and of their judgements, including skipped documents;
        - ``scored``: number of complete queries with a relevant document, over which nDCG is averaged, as in
          ``cse eval``; for the other queries, nDCG is not defined;
        - ``comparison``: the record that ``cse compare`` shows (see ``cse.evaluation.run.Comparison``); ``decided``:
          whether its verdict is better or worse; ``spread``: standard deviation of the differences per query, in
          points;
        - ``target``: the given difference; ``needed``, ``needed_if_observed``: number of scored queries that find the
          given difference, or a difference as large as the observed one, with a probability of 80 % (see
          ``queries_needed``); None if all differences are 0;
        - ``more``: number of further queries to judge for ``needed``, if the same share of them has a relevant
          document; ``more_judgements`` and ``more_seconds``: the number of judgements and the time that they take.

        With fewer than two scored queries, ``comparison`` and what follows from it are None.
    """
    complete = [entry for entry in pools if all((entry.query, document) in judgements for document in entry.documents)]
    qrels: dict[str, dict[str, int]] = {}
    for query, documents in complete:
        values = {document: judgements[query, document] for document in documents}
        qrels[query] = {document: int(value) for document, value in values.items() if value is not None}
    scored = [query for query, relevant in qrels.items() if any(relevant.values())]
    judged, cut = sum(len(entry.documents) for entry in complete), min(depth, 10)
    result: dict[str, Any] = {"queries": len(pools), "complete": len(complete), "judgements": judged}
    result |= {"scored": len(scored), "comparison": None, "decided": False, "spread": None, "target": target}
    result |= dict.fromkeys(("needed", "needed_if_observed", "more", "more_judgements", "more_seconds"))
    if len(scored) < 2:
        return qrels, result
    a, b = (np.array([100 * ndcg(side[query], qrels[query], cut) for query in scored]) for side in (old, new))
    first, second = ([Report([], samples=[Sample(f"ndcg@{cut}", values)])] for values in (a, b))
    records = compare(first, second, seeds=False)
    adjust(records)
    record, spread = records[0], float(np.std(b - a, ddof=1))
    result |= {"comparison": record, "decided": record["verdict"] in ("better", "worse"), "spread": spread}
    if spread > 0:
        needed = queries_needed(target, spread)
        more = math.ceil(max(0, needed - len(scored)) * len(complete) / len(scored))
        result |= {"needed": needed, "more": more, "more_judgements": round(more * judged / len(complete))}
        if seconds is not None:
            result["more_seconds"] = round(result["more_judgements"] * seconds)
        if abs(record["mean"]) > 1e-9 * spread:
            result["needed_if_observed"] = queries_needed(record["mean"], spread)
    return qrels, result
