"""The verdict on an encoder after training, or on another encoder: one word, from the values of single examples.

The first measure decides the word; but if it is not worse and a further measure is, the word is ``mixed``. The
word of a measure is given by ``significance.word``, with p-values adjusted over the measures.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import for_markdown
from .apart import undecided
from .base import Report, Sample
from .significance import ALL_ROWS, CANNOT_TELL, WORSE, adjust, compare

NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class Verdict:
    """A word, the measures that it comes from, and what else a reader should know."""

    word: str
    """``better``, ``worse``, ``mixed``, ``cannot tell`` or ``not judged``."""
    why: str
    measures: list[dict[str, Any]] = field(default_factory=list)
    """One record per measure: ``task``, ``examples`` (their number), ``unit`` (``rows``, ``pairs`` or ``queries``), the
    scores ``a`` before and ``b`` after, ``mean`` (the difference in points), its 95 % interval ``low`` and ``high``,
    its p-value ``p``, the p-value adjusted over the measures ``p_holm``, ``visible`` (the smallest difference that
    these examples would have shown), and ``word``. Without an interval, only the last of these six is present. For a
    mean over classes, also ``by_rows``: the means over all rows before and after."""
    notes: list[str] = field(default_factory=list)
    beside: dict[str, float] = field(default_factory=dict)
    """Scores that need no encoder, by name, and their accuracies; see ``Report.beside``."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    before: Sequence[Sample],
    after: Sequence[Sample],
    notes: Sequence[str] = (),
    beside: Mapping[str, float] | None = None,
    uncertain: Collection[str] = (),
) -> Verdict:
    """Returns the verdict on the second of two encoders, from the samples of both for the same measures, in order.
    Tasks in ``uncertain`` cannot decide; see ``apart.undecided``."""
    first, second = ([Report([], samples=list(side))] for side in (before, after))
    records = adjust(compare(first, second, seeds=False))
    undecided([record for record in records if record["task"] in uncertain])
    named = [{**record, "task": sample.measure or sample.task} for record, sample in zip(records, before, strict=True)]
    return conclude(named, [sample.unit for sample in before], notes, beside)


def conclude(
    records: Sequence[dict[str, Any]],
    units: Sequence[str],
    notes: Sequence[str] = (),
    beside: Mapping[str, float] | None = None,
) -> Verdict:
    """Returns the verdict from the records of ``significance.adjust``; ``units`` are the units of its samples."""
    measures = [_worded({**record, "unit": unit}) for record, unit in zip(records, units, strict=True)]
    notes = [*(f"{record['task']}: {record['note']}" for record in measures if "note" in record), *notes]
    main, *others = measures
    worse = [record["task"] for record in others if record["word"] == WORSE]
    if worse and main["word"] != WORSE:
        why = f"{main['word']} by {main['task']}, worse by {', '.join(worse)}"
        return Verdict("mixed", why, measures, notes, dict(beside or {}))
    return Verdict(main["word"], f"by {main['task']}", measures, notes, dict(beside or {}))


def _worded(record: dict[str, Any]) -> dict[str, Any]:
    """Returns a record with its word and, if six examples or more can be significant, what would have shown."""
    word = record.pop("verdict")
    if "low" in record and record["examples"] > 5:  # fewer have a p-value of at least 0.05
        record["visible"] = max(record["high"] - record["mean"], record["mean"] - record["low"])
    return {**record, "word": word}


def cells(record: dict[str, Any]) -> dict[str, str]:

    def number(name: str, form: str = "") -> str:  # None stands for NaN in result.json
        value = record[name]
        return "none" if value is None or math.isnan(value) else f"{value:{form}.2f}"

    interval = f"[{number('low', '+')}, {number('high', '+')}]" if "low" in record else "-"
    word = record["word"]
    visible = None not in (record.get("visible"), record["mean"]) and record["visible"] > abs(record["mean"])
    if word == CANNOT_TELL and visible:
        word += f"; a difference of {record['visible']:.2f} would have shown"
    return {
        "measure": record["task"],
        "before": number("a"),
        "after": number("b"),
        "difference": number("mean", "+"),
        "95 % interval": interval,
        "examples": f"{record['examples']:,} {record['unit']}",
        "verdict": word,
    }


def table(verdict: dict[str, Any], beside: bool = True) -> list[dict[str, str]]:
    """Returns the rows of a table of a verdict: the measures, their accuracies if they are mean recalls, and, with
    ``beside``, the scores that need no encoder."""
    rows = [cells(record) for record in verdict["measures"]]
    for record in verdict["measures"]:
        if "by_rows" in record:
            a, b = record["by_rows"]
            shown = {"before": f"{a:.2f}", "after": f"{b:.2f}", "difference": f"{b - a:+.2f}", "95 % interval": "-"}
            rows.append({**dict.fromkeys(rows[0], ""), "measure": f"{record['task']}, {ALL_ROWS}", **shown})
    known = verdict.get("beside", {}).items() if rows and beside else ()  # runs of earlier versions have none
    return rows + [{**dict.fromkeys(rows[0], ""), "measure": name, "before": f"{score:.2f}"} for name, score in known]


def lines(verdict: dict[str, Any]) -> list[str]:
    """Returns a verdict, as ``Verdict.to_dict`` returns it, as lines of text: the word, the measures and the notes."""
    rows = [
        [name, f"{a} -> {b}".removesuffix(" -> "), f"{difference} {interval}".removesuffix(" -"), *rest]
        for name, a, b, difference, interval, *rest in (row.values() for row in table(verdict))
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [f"verdict: {verdict['word']}, {verdict['why']}", *(f"  {line}" for line in [*shown, *verdict["notes"]])]


def markdown(verdict: dict[str, Any]) -> str:
    """Returns a verdict, as ``Verdict.to_dict`` returns it, as Markdown: the word, a table, the notes."""
    parts = [f"**{verdict['word']}**, {for_markdown(verdict['why'])}."]
    if rows := table(verdict):
        head = [list(rows[0]), ["---"] * len(rows[0])]
        rows_of_text = [*head, *(row.values() for row in rows)]
        listed = [[for_markdown(cell).replace("|", "&#124;") for cell in row] for row in rows_of_text]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in listed))
    return "\n\n".join([*parts, *map(for_markdown, verdict["notes"])])
