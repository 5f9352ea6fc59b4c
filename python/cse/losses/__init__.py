"""Loss terms: functions of the embeddings of a batch, and their registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import LossTerm

__all__ = ["CONTRASTIVE_LOSSES", "LOSS_TERMS"]

CONTRASTIVE_LOSSES = ("standard", "focal", "mixed")
"""Values of ``--loss`` that are names for options of the term ``contrastive``."""

LOSS_TERMS: Registry[type[LossTerm]] = Registry(
    "loss term",
    "cse.loss_terms",
    {
        "contrastive": "cse.losses.contrastive:Contrastive",
        "diffcse": "cse.losses.diffcse:DiffCSE",
        "mlm": "cse.losses.mlm:MLM",
    },
)
"""Loss terms by name: ``cse train --loss NAME`` takes one as the loss, ``--loss-term NAME`` adds one to the loss."""
