"""Changes to embeddings, to forward passes and to the encoder, and their registries.

Feature methods change embeddings, hooks change forward passes, and encoder methods change the encoder itself.
This module does not import torch, so that the command line, which lists the options of LoRA, starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Lt

from ..options import Opt
from ..registry import Registry

if TYPE_CHECKING:
    from .base import EncoderMethod, FeatureMethod, Hook


@dataclass(frozen=True)
class LoRAOptions:
    """Options of LoRA."""

    rank: Annotated[
        int,
        Ge(1),
        Opt(
            "trains adapters of this rank, not the weights (LoRA, with peft)",
            flag="--lora",
            metavar="RANK",
            default="off",
            enables=True,
        ),
    ] = 16
    alpha: Annotated[float, Ge(0), Opt("the adapters are scaled by alpha / rank; 0: alpha is twice the rank")] = 0.0
    dropout: Annotated[float, Ge(0), Lt(1), Opt("dropout probability for the inputs of the adapters")] = 0.0
    targets: Annotated[
        tuple[str, ...], Opt("last parts of the names of the layers to adapt, such as query; empty: all linear layers")
    ] = ()


__all__ = ["ENCODER_METHODS", "FEATURE_AUGMENTATIONS", "HOOKS"]

FEATURE_AUGMENTATIONS: Registry[type[FeatureMethod]] = Registry("feature augmentation", "cse.feature_augmentations")
"""Methods that change embeddings, by name: ``cse train --feature-augmentation NAME``."""

HOOKS: Registry[type[Hook]] = Registry("hook", "cse.hooks")
"""Methods that change the forward pass of a view, by name: ``cse train --positive-hook NAME``."""

ENCODER_METHODS: Registry[type[EncoderMethod]] = Registry(
    "encoder method",
    "cse.encoder_methods",
    {"lora": "cse.features.base:LoRA"},
    options={"lora": "cse.features:LoRAOptions"},
)
"""Methods that change the encoder, by name: ``cse train --encoder-method NAME``."""
