"""Changes to embeddings, to forward passes and to the encoder, and their registries.

Feature methods change embeddings, hooks change forward passes, and encoder methods change the encoder itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import EncoderMethod, FeatureMethod, Hook

__all__ = ["ENCODER_METHODS", "FEATURE_AUGMENTATIONS", "HOOKS"]

FEATURE_AUGMENTATIONS: Registry[type[FeatureMethod]] = Registry(
    "feature augmentation",
    "cse.feature_augmentations",
    {
        "dclr": "cse.features.negatives:DCLR",
        "gaussian": "cse.features.negatives:Gaussian",
        "modals": "cse.features.modals:Modals",
        "momentum": "cse.features.negatives:Momentum",
        "projector": "cse.features.encoder_methods:Projector",
    },
)
"""Methods that change embeddings, by name: ``cse train --feature-augmentation NAME``."""

HOOKS: Registry[type[Hook]] = Registry(
    "hook",
    "cse.hooks",
    {
        "feature-cutoff": "cse.features.hooks:FeatureCutoff",
        "pca": "cse.features.hooks:PCAJitter",
        "second-template": "cse.features.prompt:PromptHook",
        "token-cutoff": "cse.features.hooks:TokenCutoff",
        "token-shuffle": "cse.features.hooks:TokenShuffle",
    },
)
"""Methods that change the forward pass of a view, by name: ``cse train --positive-hook NAME``."""

ENCODER_METHODS: Registry[type[EncoderMethod]] = Registry(
    "encoder method",
    "cse.encoder_methods",
    {
        "ema": "cse.features.encoder_methods:EMA",
        "lora": "cse.features.encoder_methods:LoRA",
        "prompt": "cse.features.prompt:Prompt",
    },
    options={"lora": "cse.features.options:LoRAOptions"},
)
"""Methods that change the encoder, by name: ``cse train --encoder-method NAME``."""
