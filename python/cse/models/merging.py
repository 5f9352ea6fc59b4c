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
        encoder: The encoder before training. Its head is not part of the copy, since it has no base.
        share: Weight of the base in the average, 0 to 1; with 0 nothing is copied.
    """

    def __init__(self, encoder: SentenceEncoder, share: float) -> None:
        self.share = share
        self._base = [weights.detach().clone() for weights in encoder.backbone.parameters()] if share else []

    @contextmanager
    @torch.no_grad()
    def merged(self, encoder: SentenceEncoder) -> Iterator[None]:
        """Within the context the encoder has (1 - share) * trained + share * base; afterwards its own weights again."""
        if not self.share:
            yield
            return
        trained = [weights.detach().clone() for weights in encoder.backbone.parameters()]
        for weights, base in zip(encoder.backbone.parameters(), self._base, strict=True):
            weights.lerp_(base, self.share)
        try:
            yield
        finally:
            for weights, own in zip(encoder.backbone.parameters(), trained, strict=True):
                weights.copy_(own)
