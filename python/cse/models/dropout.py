"""Dropout on the CPU with masks from a fast generator.

On the CPU, PyTorch draws dropout masks element by element on one thread, which takes up a large part of a training step
of a small transformer. Here, each element of a mask is decided by 16 random bits from NumPy's SFC64, which is seeded
from PyTorch's generator. Runs are therefore reproducible, and gradient caching and checkpoints need to store only the
state of PyTorch's generator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .attention import replace_attention

__all__ = ["FastDropout", "keep_mask", "use_fast_dropout"]

ATTENTION = "cse_fast_dropout"


def keep_mask(shape: torch.Size | tuple[int, ...], p: float) -> Tensor:
    """Returns a bool mask that is False with probability ``p``, rounded to a multiple of 2**-16."""
    seed = int(torch.randint(2**63 - 1, ()).item())
    count = int(np.prod(shape))
    bits = np.random.SFC64(seed).random_raw(-(-count // 4)).view(np.int16)[:count]
    values = torch.from_numpy(bits).view(shape)
    dropped = round(p * 2**16)
    if dropped == 2**16:  # the threshold does not fit into 16 bits
        return torch.zeros_like(values, dtype=torch.bool)
    keep: Tensor = values >= dropped - 2**15
    return keep


def keep_scale(p: float) -> float:
    """Returns 1 / (1 - p), the factor by which kept elements are scaled; 0 for p = 1, where all are dropped."""
    return 1 / (1 - p) if p < 1 else 0.0


class FastDropout(nn.Module):
    """Dropout like ``nn.Dropout``, for tensors on the CPU."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Sets elements to 0 with probability p and divides the others by 1 - p, in training mode only."""
        if not self.training or self.p == 0:
            return x
        return x * keep_mask(x.shape, self.p).to(x.dtype).mul_(keep_scale(self.p))

    def extra_repr(self) -> str:
        """Returns the probability in the form that ``nn.Dropout`` prints."""
        return f"p={self.p}"


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention with fast dropout of the probabilities; has the interface that transformers expects.

    The scaled-dot-product attention of transformers is called instead if there is no dropout, if the attention is
    causal without a mask, or if there are fewer key heads than query heads.

    Args:
        module: The attention layer.
        query: ``(B, H, T, d)``, like ``key`` and ``value``.
        key: See ``query``.
        value: See ``query``.
        attention_mask: ``(B, 1, T, T)``, bool or additive, or None.
        dropout: Probability of dropout; 0 in evaluation.
        scaling: Factor by which the scores are multiplied; default: d ** -0.5.
        kwargs: Passed to the attention of transformers if it is called; otherwise ignored.

    Returns:
        ``(B, T, H, d)``, and None for the probabilities.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    causal = attention_mask is None and getattr(module, "is_causal", False)
    if dropout == 0 or causal or key.shape[1] != query.shape[1]:
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return found
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if attention_mask is not None:
        allowed = attention_mask[..., : key.shape[2]]
        scores = scores.masked_fill(~allowed, -torch.inf) if allowed.dtype == torch.bool else scores + allowed
    probabilities = scores.softmax(-1)
    keep = keep_mask(probabilities.shape, dropout).to(scores.dtype).mul_(keep_scale(dropout))
    return (probabilities * keep @ value).transpose(1, 2).contiguous(), None


def use_fast_dropout(backbone: Any) -> None:
    """Replaces the dropout of a transformer on the CPU, in its ``nn.Dropout`` modules and in its attention.

    The attention is replaced only if the model uses the scaled-dot-product implementation of transformers; otherwise it
    keeps PyTorch's dropout.
    """
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p))
    replace_attention(backbone, ATTENTION, attention)
