"""Conversion of cosine similarities to logits, and the similarities of mixed negatives.

Mixed negatives (MixCSE; Zhang et al. 2022) are computed as in the paper or as in the released code.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize


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


def mixture_similarity(
    anchors: Tensor, candidates: Tensor, target: Tensor, partners: Tensor, mix_lambda: float
) -> Tensor:
    """Returns the cosine of each anchor with its own mixed negative, ``(M, 1)`` (MixCSE, section 3.2).

    The mixture is normalise(lambda h_target + (1 - lambda) h_partner), where h are candidates of unit length. It has
    no gradient.

    Args:
        anchors: ``(M, D)``.
        candidates: ``(K, D)``.
        target: ``(M,)`` int64, position of each anchor's positive among the candidates.
        partners: ``(M,)`` int64, position of the candidate that the positive is mixed with.
        mix_lambda: Weight of the positive.
    """
    h = normalize(candidates, dim=-1)
    mixture = normalize(mix_lambda * h[target] + (1 - mix_lambda) * h[partners], dim=-1).detach()
    return (normalize(anchors, dim=-1) * mixture).sum(-1, keepdim=True)


def release_similarities(z1: Tensor, z2: Tensor, mix_lambda: float) -> Tensor:
    """Returns the cosines with the mixed negatives of MixCSE's released code, ``(B, 2B)``.

    Neighbouring rows of unnormalised embeddings are mixed. In row i, the first B columns compare row i of z1 with all
    mixtures of z2; the last B columns compare mixture i of z1 with all rows of z2. In each half, the entries of one
    diagonal are set to 0 instead of being removed, so each adds e^0 = 1 to a denominator. Mixtures have no gradient.

    Args:
        z1: ``(B, D)``, the anchors.
        z2: ``(B, D)``, the positives.
        mix_lambda: Weight of row k in its mixture with row k + 1.
    """

    def mix(x: Tensor) -> Tensor:  # row k: lambda x_k + (1 - lambda) x_{k+1}
        return normalize((mix_lambda * x + (1 - mix_lambda) * x.roll(-1, 0)).detach(), dim=-1)

    identity = torch.eye(len(z1), dtype=torch.bool, device=z1.device)
    first = normalize(z1, dim=-1) @ mix(z2).T
    second = mix(z1) @ normalize(z2, dim=-1).T
    # Set to 0: (i, i - 1) in the first B columns, since mixture i - 1 contains z2_i; (i, i + 1) in the last B columns,
    # since mixture i contains z1_{i+1}.
    first = first.masked_fill(identity.roll(1, 0), 0.0)
    second = second.masked_fill(identity.roll(1, 1), 0.0)
    return torch.cat([first, second], dim=1)
