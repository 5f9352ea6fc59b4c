"""Conversion of cosine similarities to logits."""

from __future__ import annotations

from torch import Tensor

__all__ = ["LOGITS", "cosine", "focal"]


def cosine(s: Tensor, positive: Tensor | None, temperature: float, margin: float) -> Tensor:
    """Returns s / tau for positives and negatives (SimCSE, equation 1); ``positive`` and ``margin`` are ignored."""
    return s / temperature


def focal(s: Tensor, positive: Tensor | None, temperature: float, margin: float) -> Tensor:
    """Returns s^2 / tau for positives and s (s + m) / tau for negatives (Focal-InfoNCE, equation 2).

    The modulating factors s and s + m are not detached. The logit of a negative has its minimum at s = -m/2 and
    increases again for smaller s.

    Args:
        s: ``(M, K)`` cosine similarities.
        positive: ``(M,)`` int64, the column of ``s`` that holds each row's positive; None if all columns are negatives.
        temperature: tau.
        margin: m.

    Returns:
        ``(M, K)`` logits.
    """
    if positive is None:
        return s * (s + margin) / temperature
    negative = s.new_ones(s.shape).scatter_(1, positive[:, None], 0.0)
    return s * (s + margin * negative) / temperature


LOGITS = {"cosine": cosine, "focal": focal}
