"""Averaging trained weights with those of the base model (weight interpolation; Wortsman et al. 2022, WiSE-FT)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .encoder import SentenceEncoder

__all__ = ["BaseWeights"]


class BaseWeights:
    """A copy of the weights from which the training of an encoder starts.

    Args:
        encoder: The encoder before training. Its head is not copied, since the base model has none; the modules of its
            directory that follow the pooling are copied.
        share: Weight of the base in the average, 0 to 1; with 0 nothing is copied.
    """

    def __init__(self, encoder: SentenceEncoder, share: float) -> None:
        self.share = share
        self._base = [weights.detach().clone() for weights in _weights(encoder)] if share else []

    @contextmanager
    @torch.no_grad()
    def merged(self, encoder: SentenceEncoder) -> Iterator[None]:
        """Sets the weights to (1 - share) * trained + share * base within the context, and restores them on exit."""
        if not self.share:
            yield
            return
        trained = [weights.detach().clone() for weights in _weights(encoder)]
        for weights, base in zip(_weights(encoder), self._base, strict=True):
            weights.lerp_(base, self.share)
        try:
            yield
        finally:
            for weights, own in zip(_weights(encoder), trained, strict=True):
                weights.copy_(own)


def _weights(encoder: SentenceEncoder) -> list[torch.nn.Parameter]:
    """Returns the trained weights to average; of a LoRA adapter B A, only B is averaged, with its initial value 0."""
    named = [*encoder.backbone.named_parameters(), *encoder.stages.named_parameters()]
    return [weights for name, weights in named if weights.requires_grad and ".lora_A." not in name]
