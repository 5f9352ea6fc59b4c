"""Contrastive losses and further loss terms: their registry.

This module does not import torch, so that the command line starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..registry import Registry

if TYPE_CHECKING:
    from .base import LossTerm

__all__ = ["CONTRASTIVE", "CONTRASTIVE_LOSSES", "LOSS_TERMS", "TEACHER", "loss_names"]

CONTRASTIVE = "contrastive"
"""Name of the term that computes the contrastive losses."""

TEACHER = "teacher"
"""Name of the term that learns from another encoder (``--teacher``); it is the loss, or is added to it."""

CONTRASTIVE_LOSSES: dict[str, dict[str, Any]] = {
    "standard": {"logits": "cosine"},
    "focal": {"logits": "focal"},
    "mixed": {"logits": "cosine", "mixed_negatives": True},
}
"""Options of the term ``contrastive`` for each contrastive loss (SimCSE, Focal-InfoNCE, MixCSE)."""

LOSS_TERMS: Registry[type[LossTerm]] = Registry(
    "loss term",
    "cse.loss_terms",
    {
        "contrastive": "cse.losses.contrastive:Contrastive",
        "keep-similarities": "cse.losses.auxiliary:KeepSimilarities",
        "matryoshka": "cse.losses.auxiliary:Matryoshka",
        "mlm": "cse.losses.auxiliary:MLM",
        TEACHER: "cse.losses.teacher:Teacher",
    },
    options={
        CONTRASTIVE: "cse.losses.options:ContrastiveOptions",
        "keep-similarities": "cse.losses.options:KeepSimilaritiesOptions",
        "matryoshka": "cse.losses.options:MatryoshkaOptions",
        "mlm": "cse.losses.options:MLMOptions",
        TEACHER: "cse.losses.options:TeacherOptions",
    },
)
"""Loss terms by name: ``cse train --loss NAME`` uses one as the loss, ``--loss-term NAME`` adds one to the loss."""


def loss_names() -> list[str]:
    """Returns the names that ``--loss`` accepts."""
    return [*CONTRASTIVE_LOSSES, *LOSS_TERMS.names()]
