"""Augmentations, one per module, and their registries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import Augmentation, FeatureAugmentation

__all__ = ["AUGMENTATIONS", "FEATURE_AUGMENTATIONS"]

AUGMENTATIONS: Registry[type[Augmentation]] = Registry(
    "augmentation",
    "cse.augmentations",
    {
        "crop": "cse.augment.crop:Crop",
        "delete": "cse.augment.delete:Delete",
        "dropout": "cse.augment.dropout:Dropout",
        "halves": "cse.augment.halves:Halves",
        "labelled": "cse.augment.labelled:Labelled",
        "spans": "cse.augment.spans:Spans",
        "uda": "cse.augment.uda:UDA",
        "una": "cse.augment.una:UNA",
    },
)
"""Text augmentations by name: ``cse train --positive NAME`` and ``--negative NAME``."""

FEATURE_AUGMENTATIONS: Registry[type[FeatureAugmentation]] = Registry(
    "feature augmentation", "cse.feature_augmentations", {}
)
"""Augmentations of embeddings by name: ``cse train --feature-augmentation NAME``."""
