"""The objective of a run: its loss, the parts of the contrastive loss, and further loss terms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from ...errors import InputError
from ...losses import CONTRASTIVE, CONTRASTIVE_LOSSES, LOSS_TERMS
from .fields import Group, Named, Objective, Shown, Temperature

if TYPE_CHECKING:
    from ...context import Context
    from ...losses.base import LossTerm
    from ...losses.options import ContrastiveOptions

# Options of the contrastive loss, and the flags that set them with ``--loss standard``, ``focal`` or ``mixed``.
LOSS_SETTINGS = {
    "objective": "--objective",
    "logits": "--loss",
    "temperature": "--temperature",
    "mixed_negatives": "--mixed-negatives",
}


class Loss(Group):
    """Loss"""

    loss: Annotated[str, Shown("standard|focal|mixed|NAME"), Named("cse.losses:loss_names")] = "standard"
    """standard (SimCSE), focal (Focal-InfoNCE) or mixed (MixCSE); or the NAME of a loss term that replaces them."""
    temperature: Temperature | None = None
    """Temperature tau, by which the similarities are divided in the logits."""
    objective: Objective | None = None
    """infonce: compare each anchor with positives and hard negatives; nt-xent: compare each anchor and positive with
    all others. --una-as pairs implies nt-xent."""
    mixed_negatives: bool | None = None
    """Add mixed negatives (MixCSE) to --loss standard or focal; --loss mixed always has them."""
    loss_terms: Annotated[tuple[str, ...], Shown("NAME", flag="--loss-term"), Named("cse.losses:LOSS_TERMS")] = ()
    """A further loss term; see cse methods."""

    def check(self) -> None:
        """Raises ``InputError`` for settings that exclude each other."""
        if self.loss in self.loss_terms:
            raise InputError(f"--loss-term {self.loss}: is already the loss (--loss {self.loss}); leave it out")
        if CONTRASTIVE in self.loss_terms:
            raise InputError(f"--loss-term {CONTRASTIVE}: is part of --loss standard, focal and mixed; leave it out")
        if "matryoshka" in self.loss_terms and self.loss not in (*CONTRASTIVE_LOSSES, CONTRASTIVE):
            raise InputError(
                f"--dims: this option belongs to a contrastive loss, which --loss {self.loss} is not; leave it out"
            )
        if CONTRASTIVE_LOSSES.get(self.loss, {}).get("mixed_negatives") and self.mixed_negatives is False:
            raise InputError(f"--no-mixed-negatives: cannot be combined with --loss {self.loss}; use --loss standard")


class ResolvedLoss(Loss):
    """The settings that have a value in every run."""

    temperature: float
    objective: Objective
    mixed_negatives: bool


def loss_terms(
    settings: Loss, contrastive: ContrastiveOptions, options: Mapping[str, Mapping[str, Any]], context: Context
) -> dict[str, LossTerm]:
    """Constructs the loss terms by name: the run's loss first, then the additional terms.

    Args:
        settings: The settings of the loss.
        contrastive: Options of the contrastive loss, if the run has one.
        options: Options of all methods by name.
        context: The resources of the run.

    Raises:
        InputError: If the labelled pairs have hard negatives that no term uses.
    """
    from .methods import create

    terms: dict[str, LossTerm] = {}
    if settings.loss in CONTRASTIVE_LOSSES:
        terms[CONTRASTIVE] = LOSS_TERMS.get(CONTRASTIVE)(contrastive, context)
    names = settings.loss_terms if terms else (settings.loss, *settings.loss_terms)
    terms |= {name: create(LOSS_TERMS, name, options, context) for name in names}
    hard_negatives = context.pairs is not None and bool(context.pairs.hard_negatives)
    if hard_negatives and not any("negative" in term.reads for term in terms.values()):
        raise InputError(
            f"--loss {settings.loss}: does not use the hard negatives of --pairs; name anchor and positive with "
            "--columns A,B"
        )
    return terms


def describe_loss(settings: Loss, contrastive: ContrastiveOptions) -> str:
    """Returns the parts of the loss as text."""
    if settings.loss not in CONTRASTIVE_LOSSES:
        return ", ".join([settings.loss, *settings.loss_terms])
    parts = [f"{contrastive.objective} with {contrastive.logits} logits, temperature {contrastive.temperature:g}"]
    if contrastive.logits == "focal":
        parts.append(f"margin {contrastive.margin:g}")
    if contrastive.mixed:
        parts.append(f"mixed negatives ({contrastive.mixed}, lambda {contrastive.mix_lambda:g})")
    return ", ".join([*parts, *settings.loss_terms])
