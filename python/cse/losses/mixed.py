"""Mixed negatives (MixCSE; Zhang et al. 2022), as in the paper and as in its released code."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

__all__ = ["mixture_similarity", "release_similarities"]


def mixture_similarity(
    anchors: Tensor, candidates: Tensor, target: Tensor, partners: Tensor, mix_lambda: float
) -> Tensor:
    """Cosine of each anchor with its own mixed negative, ``(M, 1)`` (MixCSE, section 3.2).

    The mixture is normalise(lambda h_target + (1 - lambda) h_partner) of unit vectors. It is detached.

    Args:
        anchors: (M, D).
        candidates: (K, D).
        target: (M,) position of each anchor's positive among the candidates.
        partners: (M,) position of the candidate it is mixed with.
        mix_lambda: Weight of the positive.
    """
    h = normalize(candidates, dim=-1)
    mixture = normalize(mix_lambda * h[target] + (1 - mix_lambda) * h[partners], dim=-1).detach()
    return (normalize(anchors, dim=-1) * mixture).sum(-1, keepdim=True)


def release_similarities(z1: Tensor, z2: Tensor, mix_lambda: float) -> Tensor:
    """Cosines with all mixtures as MixCSE's released code computes them, ``(B, 2B)``.

    Neighbouring rows of unnormalised embeddings are mixed, and every anchor sees all B mixtures: first z1 against the
    mixtures of z2, then the mixtures of z1 against z2. Two diagonals are set to 0 instead of being removed, so that e^0
    stays in the denominator. Mixtures are detached.
    """

    def mix(x: Tensor) -> Tensor:  # row k: lambda x_k + (1 - lambda) x_{k+1}
        return normalize((mix_lambda * x + (1 - mix_lambda) * x.roll(-1, 0)).detach(), dim=-1)

    identity = torch.eye(len(z1), dtype=torch.bool, device=z1.device)
    first = normalize(z1, dim=-1) @ mix(z2).T
    second = mix(z1) @ normalize(z2, dim=-1).T
    # (i, i - 1): the mixture holds z2_i. (i, i + 1): it holds z1_{i+1}.
    first = first.masked_fill(identity.roll(1, 0), 0.0)
    second = second.masked_fill(identity.roll(1, 1), 0.0)
    return torch.cat([first, second], dim=1)
