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
    {},
)
"""Methods that change embeddings by name: ``cse train --feature-augmentation NAME``."""

HOOKS: Registry[type[Hook]] = Registry("hook", "cse.hooks", {})
"""Methods that change the forward pass of a view by name: ``cse train --positive-hook NAME``."""
