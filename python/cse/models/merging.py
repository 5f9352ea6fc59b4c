"""Averaging trained weights with those of the base model (weight interpolation; Wortsman et al. 2022, WiSE-FT)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .encoder import SentenceEncoder

__all__ = ["BaseWeights"]


class BaseWeights:
    """A copy of the weights that an encoder starts from.

    Args:
        encoder: The encoder before training. Its head is not copied, since it has no base; the modules of its directory
            that follow the pooling are.
        share: Weight of the base in the average, 0 to 1; with 0 nothing is copied.
    """

    def __init__(self, encoder: SentenceEncoder, share: float) -> None:
        self.share = share
        self._base = [weights.detach().clone() for weights in _weights(encoder)] if share else []

    @contextmanager
    @torch.no_grad()
    def merged(self, encoder: SentenceEncoder) -> Iterator[None]:
        """Within the context the encoder has (1 - share) * trained + share * base; afterwards its trained weights."""
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
    """The weights that are trained. Of an adapter B A, whose base is 0, only B is averaged."""
    named = [*encoder.backbone.named_parameters(), *encoder.stages.named_parameters()]
    return [weights for name, weights in named if weights.requires_grad and ".lora_A." not in name]
