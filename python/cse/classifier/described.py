"""What is said about a classifier: at the end of ``cse train``, by ``cse predict``, and on the card of the model."""

from __future__ import annotations

from typing import Any

from ..errors import for_markdown
from .fitted import Fitted
from .promise import Interval

SHOWN = 20
"""Most labels that are listed."""
AT_RANDOM = "this holds for other rows if the labelled rows were drawn from all at random (cse draw)"


def record(fitted: Fitted) -> dict[str, Any]:
    """Returns what result.json says about a classifier."""
    promise = None if fitted.promise is None else fitted.promise.to_dict()
    about = {"column": fitted.column, "classes": fitted.classes, "why": fitted.why, "notes": fitted.notes}
    return {**about, "promise": promise}


def share(value: dict[str, float] | None) -> str:
    return "-" if value is None else str(Interval(**value))


def facts(about: dict[str, Any]) -> list[str]:
    """Returns what is promised, from ``record``, as sentences."""
    promise = about["promise"]
    if promise is None:
        return [f"no confidence is known: {about['why']}", *about["notes"]]
    said = [
        f"{promise['rows']:,} labelled texts ({promise['how']})",
        f"accuracy {share(promise['accuracy'])}, mean recall {share(promise['mean_recall'])} (95 % intervals)",
    ]
    for each in promise["thresholds"]:
        if each["accuracy"]:
            said.append(
                f"confidence {each['confidence']} or more: {each['rows']:,} of these texts, of which "
                f"{share(each['accuracy'])} % are right"
            )
    return [*said, *about["notes"], AT_RANDOM]


def table(about: dict[str, Any]) -> list[list[str]]:
    """Returns rows, precision and recall of each label, the most frequent first, as a table with its header."""
    labels = sorted(about["promise"]["labels"], key=lambda each: -each["rows"]) if about["promise"] else []
    rows = [
        [str(each["label"]), f"{each['rows']:,}", share(each["precision"]), share(each["recall"])]
        for each in labels[:SHOWN]
    ]
    if len(labels) > SHOWN:
        rows.append([f"{len(labels) - SHOWN} more", "", "", ""])
    return [["label", "texts", "precision", "recall"], *rows] if rows else []


def lines(about: dict[str, Any]) -> list[str]:
    """Returns ``facts`` and ``table`` as lines of text."""
    rows = table(about)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    listed = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    said = facts(about)
    return [
        f"predicted labels of the column {about['column']}:",
        *(f"  {line}" for line in [*said[:2], *listed, *said[2:]]),
    ]


def markdown(about: dict[str, Any]) -> str:
    """Returns ``facts`` and ``table`` as Markdown, without HTML of labels and names."""

    def cell(text: str) -> str:
        return for_markdown(text).replace("|", "&#124;")

    parts = [
        f"Labels of the column {cell(about['column'])}: {len(about['classes'])}. {'; '.join(map(cell, facts(about)))}."
    ]
    if rows := table(about):
        head = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        parts.append("\n".join(f"| {' | '.join(map(cell, row))} |" for row in head))
    return "\n\n".join(parts)
