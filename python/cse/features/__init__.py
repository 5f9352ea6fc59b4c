"""Feature methods, which change embeddings, and hooks, which change a forward pass: their registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import FeatureMethod, Hook

__all__ = ["FEATURE_AUGMENTATIONS", "HOOKS"]

FEATURE_AUGMENTATIONS: Registry[type[FeatureMethod]] = Registry(
    "feature augmentation",
    "cse.feature_augmentations",
    {
        "dclr": "cse.features.dclr:DCLR",
        "modals": "cse.features.modals:Modals",
        "projector": "cse.features.projector:Projector",
    },
)
"""Methods that change embeddings by name: ``cse train --feature-augmentation NAME``."""

HOOKS: Registry[type[Hook]] = Registry("hook", "cse.hooks", {"pca": "cse.features.pca:PCAJitter"})
"""Methods that change the forward pass of a view by name: ``cse train --positive-hook NAME``."""
