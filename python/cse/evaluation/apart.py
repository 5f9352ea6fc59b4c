"""What judges an encoder must not have taught it: examples that an encoder knows are left out.

A judge by labels leaves out the rows whose labels taught one of the encoders, directly or through a base model or a
teacher (``cse.encoder.taught``), and those that taught it in pairs, since pairs may have been made from the labels.
Rows that were trained on without their labels judge; their number is said. A judge by held-out pairs leaves out those
of which a text was in a pair that taught one of the encoders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..encoder.taught import NOT_KNOWN, Taught
from ..errors import InputError
from .base import Evaluation, Seen
from .significance import BETTER, CANNOT_TELL, WORSE


def without(evaluation: Evaluation, seen: Seen) -> tuple[Evaluation | None, int, int]:
    """Returns an evaluation without the examples of which a text was seen, or None if too few are left; the number of
    these examples, and of all."""
    known = evaluation.known(seen)
    rest = evaluation.only(~known) if known.any() else evaluation
    if rest is not None:
        rest.source = evaluation.source
    return rest, int(known.sum()), len(known)


@dataclass(frozen=True)
class Untaught:
    """An evaluation of which no example's label or pair taught an encoder, or None if too few are left."""

    evaluation: Evaluation | None
    notes: list[str] = field(default_factory=list)
    """Remarks on what the encoders were trained on, and on what was left out."""
    fault: str = ""
    """Why nothing is left."""


def can_have_taught(evaluation: Evaluation) -> bool:
    """Returns whether an evaluation judges by what may also have taught: labels or pairs."""
    return evaluation.by_labels or evaluation.by_pairs


def untaught(evaluation: Evaluation, taught: Mapping[str, Taught]) -> Untaught:
    """Returns a judge by labels or pairs without the examples that taught one of the encoders, by name; other
    evaluations are returned as they are."""
    if not can_have_taught(evaluation):
        return Untaught(evaluation)
    kind = "rows" if evaluation.by_labels else "pairs that judge"
    notes = [f"{name}: {NOT_KNOWN}" for name, each in taught.items() if each.unknown]
    rest: Evaluation | None = evaluation
    for name, each in taught.items():
        if rest is None:
            break
        through = ", itself or through its base or teacher"
        ways = {"the labels": each.has_labels} if rest.by_labels else {}
        if rest.by_rows:
            ways["pairs"] = each.has_pairs
        elif paired := int(rest.known(each.has_pairs).sum()):
            notes.append(f"{name} learned pairs of {paired:,} of the texts{through}, and perhaps their labels")
        for what, known in ways.items():
            rest, gone, count = without(rest, known)
            said = f"{name} learned {what} of {gone:,} of the {count:,} {kind}{through}"
            if rest is None:
                return Untaught(None, notes, f"{said}, and the others cannot judge alone")
            if gone:
                notes.append(f"{said}; these do not judge")
        seen = rest.known(each.has_seen)
        if trained := int((seen & ~rest.known(each.has_pairs)).sum()) if rest.by_labels else 0:
            notes.append(f"{name} was trained on {trained:,} of the {len(seen):,} texts, without their labels")
    return Untaught(rest, notes)


def need(found: Untaught) -> Evaluation:
    """Returns the evaluation; raises ``InputError`` if nothing is left of it."""
    if found.evaluation is None:
        raise InputError(f"{found.fault}; name rows whose labels did not teach it")
    return found.evaluation


def undecided(records: list[dict[str, Any]]) -> None:
    """Sets the words of records to ``CANNOT_TELL``, since labels of unknown texts taught one of the encoders."""
    for record in records:
        if record["verdict"] in (BETTER, WORSE):
            record["verdict"] = CANNOT_TELL
