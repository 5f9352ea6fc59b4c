"""Changes to embeddings, to forward passes and to the encoder, and their registries.

Feature methods change embeddings, hooks change forward passes, and encoder methods change the encoder itself.
This module does not import torch, so that the command line, which lists the methods, starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import EncoderMethod, FeatureMethod, Hook

__all__ = ["ENCODER_METHODS", "FEATURE_AUGMENTATIONS", "HOOKS"]

FEATURE_AUGMENTATIONS: Registry[type[FeatureMethod]] = Registry("feature augmentation", "cse.feature_augmentations")
"""Methods that change embeddings, by name: ``cse train --feature-augmentation NAME``."""

HOOKS: Registry[type[Hook]] = Registry("hook", "cse.hooks")
"""Methods that change the forward pass of a view, by name: ``cse train --positive-hook NAME``."""

ENCODER_METHODS: Registry[type[EncoderMethod]] = Registry(
    "encoder method",
    "cse.encoder_methods",
    {"lora": "cse.hooks.base:LoRA"},
    options={"lora": "cse.hooks.options:LoRAOptions"},
)
"""Methods that change the encoder, by name: ``cse train --encoder-method NAME``."""
