"""Compares the encoders of two runs by what judged one of them, without rows that the other was trained on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import InputError
from ..evaluation.apart import untaught, without
from ..evaluation.base import Encodes, Evaluation
from ..evaluation.labels import CrossFitted
from ..evaluation.verdict import Verdict
from ..identity import row_keys
from .inputs import Inputs, taught_by_model
from .judging import concluded, samples_of


def compare_runs(first: str, second: str, load: Callable[[str], Encodes]) -> Verdict:
    """Returns the verdict on the encoder of the second run against the first run's, by what judged the first run
    or, if nothing did, the second one; ``load`` returns the encoder of a run. Examples whose texts the other run was
    trained on, or selected by, do not judge, nor do rows whose labels taught one of the two, also through a base or a
    teacher."""
    one, other = Inputs.of(first), Inputs.of(second)
    taught = {name: taught_by_model(name) for name in (first, second)}

    def judging(run: Inputs) -> list[Evaluation]:
        """Returns what judged a run, but for encoders that were trained for it alone."""
        return [each for each in run.judge.evaluations if not isinstance(each, CrossFitted)]

    if not judging(one):
        one, other = other, one
    if not judging(one):
        crossed = [run.name for run in (one, other) if run.judge.by_folds]
        if crossed:
            raise InputError(
                f"{first}, {second}: all labels taught {' and '.join(crossed)}, so that none are left to judge; name a "
                "table of other rows with their labels: --labels COLUMN --column COLUMN --data TABLE"
            )
        raise InputError(
            f"{first}, {second}: nothing judged these runs; name what does, with --data PATH, or judge texts yourself "
            "with --pool"
        )
    notes, evaluations = [f"judged by what judged {one.name}"], []
    own = taught[other.name].own
    for evaluation in judging(one):
        rest, count, _ = without(evaluation, lambda texts: np.isin(row_keys(texts), own))
        if count:
            notes.append(
                f"{count:,} examples do not judge, because {other.name} was trained on them or was selected by them"
            )
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
    return concluded(samples_of(before), after, notes, [unknown and each.by_labels for each in evaluations])
