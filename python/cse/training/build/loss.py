"""The objective of a run: its loss, the parts of the contrastive loss, and further loss terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS

if TYPE_CHECKING:
    from ...context import Context
    from ...losses.base import LossTerm
    from ...losses.options import ContrastiveOptions


def loss_terms(
    loss: str,
    further: Sequence[str],
    contrastive: ContrastiveOptions,
    options: Mapping[str, Mapping[str, Any]],
    context: Context,
) -> dict[str, LossTerm]:
    """Constructs the loss terms by name: the run's loss first, then the additional terms.

    Args:
        loss: Value of ``--loss``.
        further: Names of further terms.
        contrastive: Options of the contrastive loss, if the run has one.
        options: Options of all methods by name.
        context: The resources of the run.

    Raises:
        InputError: If the labelled pairs have hard negatives that no term uses.
    """
    from .methods import create

    terms: dict[str, LossTerm] = {}
    if loss in CONTRASTIVE_LOSSES:
        terms[CONTRASTIVE] = LOSS_TERMS.get(CONTRASTIVE)(contrastive, context)
    names = further if terms else (loss, *further)
    terms |= {name: create(LOSS_TERMS, name, options, context) for name in names}
    hard_negatives = context.pairs is not None and bool(context.pairs.hard_negatives)
    if hard_negatives and not any("negative" in term.reads for term in terms.values()):
        raise InputError(
            f"--loss {loss} does not use the hard negatives of --pairs; name anchor and positive with --columns A,B"
        )
    return terms


def describe_loss(loss: str, further: Sequence[str], contrastive: ContrastiveOptions) -> str:
    """Returns the parts of the loss as text."""
    if loss not in CONTRASTIVE_LOSSES:
        return ", ".join([loss, *further])
    parts = [f"{contrastive.objective} with {contrastive.logits} logits, temperature {contrastive.temperature:g}"]
    if contrastive.logits == "focal":
        parts.append(f"margin {contrastive.margin:g}")
    if contrastive.mixed:
        gradient = "" if contrastive.stop_gradient else ", with a gradient"
        parts.append(f"mixed negatives ({contrastive.mixed}, lambda {contrastive.mix_lambda:g}{gradient})")
    return ", ".join([*parts, *further])
