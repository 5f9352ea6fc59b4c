"""Compares the encoders of two runs by what judged one of them, without rows that the other was trained on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from ..encoder.taught import Taught
from ..errors import InputError
from ..evaluation.apart import can_have_taught, untaught, without
from ..evaluation.base import Encodes, Evaluation
from ..evaluation.kept import read_judges
from ..evaluation.verdict import Verdict
from ..identity import row_keys
from .inputs import Inputs, taught_by_model
from .judging import concluded, samples_of


@dataclass(frozen=True)
class Judged:
    """What judged a run and can judge other encoders, and what taught it."""

    name: str
    evaluations: list[Evaluation]
    notes: list[str]
    taught: Taught

    @classmethod
    def of(cls, run: str, data: str | PathLike[str] | None) -> Judged:
        """Reads what a run kept; of a run of an earlier version, its data are opened again."""
        kept = read_judges(Path(run), data)
        if kept is None:
            kept = [each for each in Inputs.of(run).judge.evaluations if not each.trains], []
        return cls(run, *kept, taught_by_model(run))


def compare_runs(
    first: str, second: str, load: Callable[[str], Encodes], data: str | PathLike[str] | None = None
) -> Verdict:
    """Returns the verdict on the encoder of the second run against the first run's, by what judged the first run
    or, if nothing did, the second one; ``load`` returns the encoder of a run. Examples whose texts the other run was
    trained on, or selected by, do not judge, nor do rows whose labels taught one of the two, also through a base or a
    teacher. The texts are found in the files of the run or, if it is given, in the table ``data``."""
    one, other = Judged.of(first, data), Judged.of(second, data)
    if not one.evaluations:
        one, other = other, one
    if not one.evaluations:
        if all_taught := [run.name for run in (one, other) if len(run.taught.labelled)]:
            raise InputError(
                f"{first}, {second}: all labels taught {' and '.join(sorted(all_taught))}, so that none are left to "
                "judge; name a table of other rows with their labels: --labels COLUMN --column COLUMN --data TABLE"
            )
        raise InputError(
            f"{first}, {second}: nothing judged these runs; name what does, with --data PATH, or judge texts yourself "
            "with --pool"
        )
    notes, evaluations = [f"judged by what judged {one.name}", *one.notes], []
    taught = {run.name: run.taught for run in (one, other)}
    for evaluation in one.evaluations:
        rest, count, _ = without(evaluation, lambda texts: np.isin(row_keys(texts), other.taught.own))
        if count:
            these = f"{count:,} example{'s do' if count > 1 else ' does'}"
            notes.append(f"{these} not judge, because {other.name} was trained on them or was selected by them")
        if rest is not None:
            found = untaught(rest, taught)
            notes += [note for note in (*found.notes, found.fault) if note]
            evaluations += [] if found.evaluation is None else [found.evaluation]
    if not evaluations:
        raise InputError(
            f"{first}, {second}: one of them was trained on all rows that judged {one.name}; name others, with "
            "--data PATH"
        )
    before, after = ([evaluation(load(name)) for evaluation in evaluations] for name in (first, second))
    unknown = any(each.unknown for each in taught.values())
    return concluded(samples_of(before), after, notes, [unknown and can_have_taught(each) for each in evaluations])
