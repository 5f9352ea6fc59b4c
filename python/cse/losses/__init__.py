"""Loss terms: functions of the embeddings of a batch, and their registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import LossTerm

__all__ = ["LOSS_TERMS"]

LOSS_TERMS: Registry[type[LossTerm]] = Registry("loss term", "cse.loss_terms", {"mlm": "cse.losses.mlm:MLM"})
"""Additional loss terms by name: ``cse train --loss-term NAME`` adds one to the contrastive loss."""
