"""From cosine similarities to logits."""

from __future__ import annotations

from torch import Tensor

__all__ = ["LOGITS", "cosine", "focal"]


def cosine(s: Tensor, positive: Tensor | None, temperature: float, margin: float) -> Tensor:
    """s / tau for positives and negatives alike (SimCSE, equation 1); the other arguments are not used."""
    return s / temperature


def focal(s: Tensor, positive: Tensor | None, temperature: float, margin: float) -> Tensor:
    """s^2 / tau for positives, s (s + m) / tau for negatives (Focal-InfoNCE, equation 2).

    Gradients flow through the modulation. Below s = -m/2 the logit of a negative rises again as s falls.

    Args:
        s: (M, K) cosine similarities.
        positive: (M,) column of each row's positive; None if all columns are negatives.
        temperature: tau.
        margin: m.
    """
    if positive is None:
        return s * (s + margin) / temperature
    negative = s.new_ones(s.shape).scatter_(1, positive[:, None], 0.0)
    return s * (s + margin * negative) / temperature


LOGITS = {"cosine": cosine, "focal": focal}
