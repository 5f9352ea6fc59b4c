"""Faster dropout on the CPU.

In ``FastDropout``, each element of a mask is decided by 16 random bits of ChaCha8, which the core computes in parallel
(PyTorch uses one thread); the seed of a mask is drawn from PyTorch's generator, so that runs are reproducible.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import cse._core as _core

from .attention import replace_attention

if TYPE_CHECKING:
    from .packing import Layout


ATTENTION = "cse_fast_dropout"


def dropout_mask(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Returns a mask that is 0 with probability ``p``, rounded to a multiple of 2**-16, and 1 / (1 - p) elsewhere."""
    seed = int(torch.randint(2**63 - 1, ()).item())
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    mask = _core.dropout_mask(seed, round(p * 2**16), _scale(p, dtype), count)
    return torch.frombuffer(mask, dtype=dtype).view(shape)


@cache
def _scale(p: float, dtype: torch.dtype) -> bytes:
    scale = torch.tensor([1 / (1 - p) if p < 1 else 0.0], dtype=dtype)
    return scale.view(torch.uint8).numpy().tobytes()


class FastDropout(nn.Dropout):
    """Dropout like ``nn.Dropout``, for tensors on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        return input * dropout_mask(input.shape, self.p, input.dtype)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention with fast dropout of the probabilities, as transformers calls it.

    Maps ``(B, H, T, d)`` to ``(B, T, H, d)``; the mask is ``(B, 1, T, T)``. Rows that are packed as ``layout`` have
    B = 1. Without dropout, with causal attention and with fewer key heads, transformers' function is called.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layout is not None:

        def of_group(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
            scores = (query @ key.transpose(2, 3)).mul_(factor)
            if padding is not None:  # a finite number, because rows without tokens have only padding
                scores = scores.masked_fill_(padding, torch.finfo(scores.dtype).min)
            return _weighted(scores, value, dropout)

        return layout.attend(of_group, query, key, value), None
    causal = attention_mask is None and getattr(module, "is_causal", False)
    if dropout == 0 or causal or key.shape[1] != query.shape[1]:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    scores = query @ key.transpose(2, 3) * factor
    if attention_mask is not None:
        allowed = attention_mask[..., : key.shape[2]]
        scores = scores.masked_fill(~allowed, -torch.inf) if allowed.dtype == torch.bool else scores + allowed
    return _weighted(scores, value, dropout).transpose(1, 2).contiguous(), None


def _weighted(scores: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Returns the sums of the values, weighted by the softmax of the scores, to which dropout is applied."""
    weights = scores.softmax(-1)
    if dropout:
        weights = weights * dropout_mask(weights.shape, dropout, weights.dtype)
    return weights @ value


def use_fast_dropout(backbone: Any) -> None:
    """Replaces the dropout of a transformer on the CPU, in its ``nn.Dropout`` modules and in its attention."""
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p).train(child.training))
    replace_attention(backbone, ATTENTION, attention)
