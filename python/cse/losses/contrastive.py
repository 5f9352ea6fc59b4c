"""Contrastive losses: pure functions of embeddings.

A loss is a structure (which similarities enter whose denominator), a logit shape (standard, focal) and extra
columns (hard negatives, mixed negatives). Embeddings come as one tensor ``(V, B, D)``, V views of B sentences:

- V = 2: anchor a, positive a+ (the same sentence under another dropout mask);
- V = 3: a, a+, and one hard negative n per row, used as columns;
- V = 4: a, a+, n, n+ (UNA as published: the synthetic sentence and its own dropout twin are rows too).

``s`` is the cosine similarity, ``tau`` the temperature. All losses are means over anchors, in nats.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

__all__ = ["contrastive_loss", "partner_count", "similarity_summary"]


def contrastive_loss(
    z: Tensor,
    *,
    loss: str = "standard",
    structure: str = "cross",
    temperature: float = 0.05,
    margin: float = 0.3,
    mix_lambda: float = 0.2,
    mix_variant: str = "paper",
    partners: Tensor | None = None,
    hard_weight: float = 1.0,
) -> Tensor:
    """The loss of one batch.

    Args:
        z: ``(V, B, D)`` embeddings, V in 2, 3, 4; any float dtype; need not be normalised.
        loss: ``standard`` (InfoNCE; SimCSE eq. 1): logits s/tau. ``focal`` (Focal-InfoNCE eq. 2): s^2/tau for the
            positive, s(s + m)/tau for all others; gradients flow through the modulation. Below s = -m/2 a
            negative's logit rises again as s falls. ``mixed`` (MixCSE): standard, plus mixed negatives.
        structure: ``cross``: anchors a (and n, if V = 4) against candidates a+ (and n+). ``all`` (NT-Xent, UNA):
            each of the V*B views against all others, its twin the positive; V must be even.
        temperature: tau.
        margin: focal's m.
        mix_lambda: weight of the anchor's own positive in its mixture.
        mix_variant: ``paper``: one mixture per anchor, normalise(lambda h'_i + (1 - lambda) h'_j), detached, in the
            anchor's own denominator only. ``release``: the released code, where unnormalised neighbours are mixed,
            every anchor sees all B mixtures, both ways round, and two diagonals' logits are 0, not removed.
        partners: ``(anchors,)`` for ``paper``: which candidate each anchor's positive is mixed with; never one of
            the anchor's own row. There are ``partner_count`` of them.
        hard_weight: alpha; the own hard negative's column (V = 3) gets + ln(alpha).

    Returns:
        A scalar tensor.
    """
    views, batch, _ = z.shape
    anchors, candidates, target = _layout(z, structure)
    s = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T  # (M, K)
    if loss == "focal":
        negative = torch.ones_like(s).scatter_(1, target[:, None], 0.0)
        logits = s * (s + margin * negative) / temperature
    else:
        logits = s / temperature
    if structure == "all":  # no view is its own negative
        logits = logits.masked_fill(torch.eye(len(s), dtype=torch.bool, device=s.device), -math.inf)
    if views == 3 and hard_weight != 1.0:
        own = torch.arange(batch, device=s.device)
        logits = logits.index_put((own, batch + own), s.new_tensor(math.log(hard_weight)), accumulate=True)
    if loss == "mixed" and mix_variant == "paper":
        if partners is None:
            raise ValueError("mixed: partners are needed")
        extra = _mixed_column(anchors, candidates, target, partners, mix_lambda) / temperature
        logits = torch.cat([logits, extra], dim=1)
    elif loss == "mixed":
        logits = torch.cat([logits, _released_mixtures(z, mix_lambda) / temperature], dim=1)
    return cross_entropy(logits, target)


def _layout(z: Tensor, structure: str) -> tuple[Tensor, Tensor, Tensor]:
    """Anchors (M, D), candidates (K, D), and each anchor's positive among the candidates (M,)."""
    views, batch, _ = z.shape
    if structure == "all":
        if views % 2:
            raise ValueError(f"all: {views} views; they come in pairs")
        flat = z.flatten(0, 1)  # view v of row i at v * B + i
        index = torch.arange(views * batch, device=z.device)
        twin = (index // batch ^ 1) * batch + index % batch
        return flat, flat, twin
    if views == 4:
        anchors, candidates = z[0::2].flatten(0, 1), z[1::2].flatten(0, 1)
    else:
        anchors, candidates = z[0], z[1:].flatten(0, 1)
    return anchors, candidates, torch.arange(len(anchors), device=z.device)


def partner_count(views: int, structure: str) -> tuple[int, int]:
    """How many views of a row are anchors, and how many may be mixed in, for ``mixed`` as in the paper.

    Hard-negative columns (V = 3) are never mixed in: mixtures are drawn from positives only.
    """
    if structure == "all":
        return views, views
    return (2, 2) if views == 4 else (1, 1)


def _mixed_column(anchors: Tensor, candidates: Tensor, target: Tensor, partners: Tensor, mix_lambda: float) -> Tensor:
    """(M, 1): each anchor against its own mixture, which passes no gradient (MixCSE, section 3.2)."""
    h = normalize(candidates, dim=-1)
    mixture = normalize(mix_lambda * h[target] + (1 - mix_lambda) * h[partners], dim=-1).detach()
    return (normalize(anchors, dim=-1) * mixture).sum(-1, keepdim=True)


def _released_mixtures(z: Tensor, mix_lambda: float) -> Tensor:
    """(B, 2B): z1 against all mixtures of z2, then mixtures of z1 against all z2 (MixCSE's released code)."""
    z1, z2 = z[0], z[1]

    def mix(x: Tensor) -> Tensor:  # row k: lambda x_k + (1 - lambda) x_{k+1}
        return normalize((mix_lambda * x + (1 - mix_lambda) * x.roll(-1, 0)).detach(), dim=-1)

    identity = torch.eye(len(z1), dtype=torch.bool, device=z.device)
    first = normalize(z1, dim=-1) @ mix(z2).T
    second = mix(z1) @ normalize(z2, dim=-1).T
    # (i, i - 1): the mixture holds z2_i. (i, i + 1): it holds z1_{i+1}. Their logits become 0, so e^0 stays.
    first = first.masked_fill(identity.roll(1, 0), 0.0)
    second = second.masked_fill(identity.roll(1, 1), 0.0)
    return torch.cat([first, second], dim=1)


@torch.no_grad()
def similarity_summary(z: Tensor) -> dict[str, float]:
    """Mean cosines: of positives (a, a+), in-batch negatives (a_i, a+_j), own synthetic negatives (a, n)."""
    h = normalize(z.float(), dim=-1)
    s = h[0] @ h[1].T
    batch = len(s)
    summary = {"cos_pos": s.diagonal().mean().item()}
    if batch > 1:
        summary["cos_neg"] = ((s.sum() - s.diagonal().sum()) / (batch * (batch - 1))).item()
    if len(z) > 2:
        summary["cos_syn"] = (h[0] * h[2]).sum(-1).mean().item()
    return summary
