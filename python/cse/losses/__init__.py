"""Loss terms: functions of the named embeddings of a batch, and the table of their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import LossTerm

__all__ = ["LOSS_TERMS"]

LOSS_TERMS: Registry[type[LossTerm]] = Registry("loss term", "cse.loss_terms", {})
"""Loss terms that are added to the contrastive loss, by name: ``cse train --loss-term NAME``."""
