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
        "dclr": "cse.features.dclr:DCLR",
        "gaussian": "cse.features.gaussian:Gaussian",
        "modals": "cse.features.modals:Modals",
        "momentum": "cse.features.momentum:Momentum",
        "projector": "cse.features.diffcse_projector:Projector",
    },
)
"""Methods that change embeddings, by name: ``cse train --feature-augmentation NAME``."""

HOOKS: Registry[type[Hook]] = Registry(
    "hook",
    "cse.hooks",
    {
        "feature-cutoff": "cse.features.consert:FeatureCutoff",
        "pca": "cse.features.pca:PCAJitter",
        "second-template": "cse.features.prompt:PromptHook",
        "token-cutoff": "cse.features.consert:TokenCutoff",
        "token-shuffle": "cse.features.consert:TokenShuffle",
    },
)
"""Methods that change the forward pass of a view, by name: ``cse train --positive-hook NAME``."""

ENCODER_METHODS: Registry[type[EncoderMethod]] = Registry(
    "encoder method",
    "cse.encoder_methods",
    {
        "ema": "cse.features.ema:EMA",
        "lora": "cse.features.lora:LoRA",
        "prompt": "cse.features.prompt:Prompt",
    },
    options={"lora": "cse.features.lora_options:LoRAOptions"},
)
"""Methods that change the encoder, by name: ``cse train --encoder-method NAME``."""
