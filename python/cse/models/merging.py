"""Averaging the weights of a trained model and its base model (WiSE-FT; Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .encoder import SentenceEncoder

__all__ = ["BaseWeights"]


class BaseWeights:
    """A copy of an encoder's weights before training, to be averaged with its trained weights.

    Args:
        encoder: The encoder before training. The trainable weights of its transformer and of the modules after the
            pooling are copied; its MLP head is not, since the base model has none.
        share: Weight of the base model in the average, 0 to 1; if it is 0, nothing is copied or averaged.
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
    """Returns the trainable weights, without the factors A of LoRA updates B A.

    The factors B start at 0, so averaging B alone scales the update.
    """
    named = [*encoder.backbone.named_parameters(), *encoder.stages.named_parameters()]
    return [weights for name, weights in named if weights.requires_grad and ".lora_A." not in name]
