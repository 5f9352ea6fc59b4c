"""Contrastive losses as a function of named embeddings, and as a loss term.

A loss has four independent parts:

1. the objective, which determines the denominator of each anchor: ``infonce`` (anchors against candidates; SimCSE,
   equation 1) or ``nt-xent`` (every view of a pair against every other; UNA);
2. the logits: ``cosine`` (s / tau) or ``focal`` (Focal-InfoNCE);
3. additional negatives: labelled or synthetic hard negatives as further columns of the similarity matrix, synthetic
   negatives as further pairs, and mixed negatives (MixCSE);
4. weights: the weight of an anchor's own hard negative, masks of rows, and a mask of duplicates.

``s`` is the cosine similarity, ``tau`` the temperature. All losses are means over anchors, in nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from .base import LossTerm, Step, Views
from .logits import LOGITS
from .mixed import mixture_similarity, release_similarities
from .rules import incompatibility

__all__ = ["Contrastive", "ContrastiveOptions", "contrastive_loss", "partner_count", "similarity_summary"]


@dataclass(frozen=True)
class Layout:
    """Layout of the similarity matrix: the views in its rows and columns, and the column of each anchor's positive."""

    anchors: list[str]
    candidates: list[str]
    columns: list[str]
    """Views that are used as negatives only; their columns follow those of the candidates."""
    target: Tensor
    """``(M,)`` int64, column of each anchor's positive."""


def contrastive_loss(
    views: Mapping[str, Tensor],
    *,
    objective: str = "infonce",
    logits: str = "cosine",
    temperature: float = 0.05,
    margin: float = 0.3,
    mixed: str | None = None,
    mix_lambda: float = 0.2,
    partners: Tensor | None = None,
    hard_negative_weight: float = 1.0,
    masks: Mapping[str, Tensor] | None = None,
    duplicates: Tensor | None = None,
    metrics: dict[str, Tensor] | None = None,
) -> Tensor:
    """Computes the contrastive loss of a batch.

    Args:
        views: Embeddings by name, each ``(B, D)``, any float dtype, not necessarily normalised: ``anchor`` and
            ``positive``; optionally ``hard_negative``, and ``synthetic`` with or without ``synthetic_positive``.
            Without ``synthetic_positive``, ``synthetic`` is a set of hard negatives in the denominator of every anchor;
            with it, the two are a second pair of views, used as anchors and candidates like the first.
        objective: ``infonce``: anchors against the candidates (the second view of each pair) and the hard negatives.
            ``nt-xent``: each view of a pair against all other such views, with the other view of its pair as the
            positive, and against the hard negatives.
        logits: ``cosine`` or ``focal``; mixed and hard negatives have the logit of a negative.
        temperature: tau.
        margin: m of the focal logits; ignored by ``cosine``.
        mixed: ``paper``: one mixed negative per anchor, in its own denominator only. ``release``: mixtures as in the
            released code; see ``cse.losses.mixed``. None: no mixed negatives.
        mix_lambda: Weight of the anchor's own positive in its mixture.
        partners: (M,) for ``paper``: the candidate that each anchor's positive is mixed with; see ``partner_count``.
        hard_negative_weight: alpha; the logit of the anchor's own ``hard_negative`` is increased by ln(alpha).
        masks: (B,) bool by view name: rows for which a view holds. Where it does not, it is neither an anchor nor in
            any denominator; an anchor without a positive is left out too.
        duplicates: (B, B) bool, symmetric: rows with the same sentence. Their anchors and positives are left out of
            each other's negatives.
        metrics: Gets ``p_pos``, the mean probability that the softmax gives the positive, and with mixed negatives
            (paper) ``cos_mix``, the mean cosine of an anchor and its mixed negative.

    Returns:
        A scalar tensor: the mean over all valid anchors, 0 if there are none.

    Raises:
        ValueError: For an undefined combination of parts, or missing partners.
    """
    problem = incompatibility(
        objective=objective,
        logits=logits,
        mixed=mixed,
        synthetic_pairs="synthetic_positive" in views,
        hard_negatives="hard_negative" in views,
        weighted=hard_negative_weight != 1.0,
    )
    if problem:
        raise ValueError(problem)
    layout = arrange(views, objective)
    shape = LOGITS[logits]
    anchors = torch.cat([views[name] for name in layout.anchors])
    candidates = torch.cat([views[name] for name in layout.candidates + layout.columns])
    s = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T  # (M, K)
    scores = shape(s, layout.target, temperature, margin)
    if objective == "nt-xent":  # exclude the similarity of each view with itself
        scores = scores.masked_fill(torch.eye(*s.shape, dtype=torch.bool, device=s.device), -math.inf)
    if hard_negative_weight != 1.0:
        own = torch.arange(len(views["anchor"]), device=s.device)
        column = (layout.candidates + layout.columns).index("hard_negative") * len(own) + own
        scores = scores.index_put((own, column), s.new_tensor(math.log(hard_negative_weight)), accumulate=True)
    if mixed == "paper":
        if partners is None:
            raise ValueError("partners: mixed negatives need them; see cse.rng.partners")
        similarity = mixture_similarity(anchors, candidates, layout.target, partners, mix_lambda)
        if metrics is not None:
            metrics["cos_mix"] = similarity.detach().mean()
        scores = torch.cat([scores, shape(similarity, None, temperature, margin)], dim=1)
    elif mixed == "release":
        similarity = release_similarities(views["anchor"], views["positive"], mix_lambda)
        scores = torch.cat([scores, shape(similarity, None, temperature, margin)], dim=1)
    kept = None
    if masks or duplicates is not None:
        scores, kept = _apply_masks(scores, layout, views, masks or {}, duplicates, mixed)
    if metrics is not None:
        with torch.no_grad():
            metrics["p_pos"] = _mean((-cross_entropy(scores, layout.target, reduction="none")).exp(), kept)
    if kept is None:
        return cross_entropy(scores, layout.target)
    losses = cross_entropy(scores, layout.target, reduction="none")
    return torch.where(kept, losses, 0.0).sum() / kept.sum().clamp(min=1)


def arrange(views: Mapping[str, Tensor], objective: str) -> Layout:
    """Returns the layout of the similarity matrix for these views; raises ``ValueError`` for an unknown objective."""
    pairs = [("anchor", "positive")]
    columns = ["hard_negative"] if "hard_negative" in views else []
    if "synthetic_positive" in views:
        pairs.append(("synthetic", "synthetic_positive"))
    elif "synthetic" in views:
        columns.append("synthetic")
    batch, device = len(views["anchor"]), views["anchor"].device
    if objective == "infonce":
        anchors, candidates = [first for first, _ in pairs], [second for _, second in pairs]
        target = torch.arange(len(pairs) * batch, device=device)
    elif objective == "nt-xent":
        anchors = candidates = [name for pair in pairs for name in pair]
        index = torch.arange(len(anchors) * batch, device=device)
        target = (index // batch ^ 1) * batch + index % batch  # the other view of the pair, the same row
    else:
        raise ValueError(f"objective: {objective!r} is unknown; choose infonce or nt-xent")
    return Layout(anchors, candidates, columns, target)


def partner_count(pairs: int, objective: str) -> tuple[int, int]:
    """Returns the number of views with anchors, and of views from which the partners of mixed negatives are sampled.

    ``pairs`` is 1, or 2 with synthetic pairs. Hard negatives are never partners.
    """
    return (2 * pairs, 2 * pairs) if objective == "nt-xent" else (pairs, pairs)


def _apply_masks(
    scores: Tensor,
    layout: Layout,
    views: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    duplicates: Tensor | None,
    mixed: str | None,
) -> tuple[Tensor, Tensor]:
    """The logits without the columns that do not hold, and (M,) True for the anchors that do."""
    batch, device = len(views["anchor"]), scores.device
    everything = torch.ones(batch, dtype=torch.bool, device=device)
    names = layout.candidates + layout.columns
    holds = torch.cat([masks.get(name, everything) for name in names])  # (K,)
    rows = torch.cat([masks.get(name, everything) for name in layout.anchors])  # (M,)
    kept = rows & holds[layout.target]
    removed = ~holds.expand(len(scores), -1)
    if duplicates is not None:
        same = ("anchor", "positive")
        apart = duplicates & ~torch.eye(batch, dtype=torch.bool, device=device)
        nothing = torch.zeros_like(apart)
        removed = removed | torch.cat(
            [torch.cat([apart if a in same and c in same else nothing for c in names], 1) for a in layout.anchors]
        )
    extra = scores.shape[1] - removed.shape[1]
    if mixed == "release":
        # Mixture k combines rows k and k + 1. First z1 against the mixtures of z2, then the mixtures of z1 against z2.
        first = masks.get("anchor", everything), masks.get("positive", everything)
        whole = [mask & mask.roll(-1, 0) for mask in first]
        columns = torch.cat([whole[1].expand(batch, -1), whole[0][:, None] & first[1][None, :]], 1)
        removed = torch.cat([removed, ~columns], 1)
    elif extra:
        removed = torch.cat([removed, removed.new_zeros(len(removed), extra)], 1)
    scores = scores.masked_fill(removed, -math.inf)
    # Anchors that are left out get logits of 0, which keeps their gradient finite.
    return scores.masked_fill(~kept[:, None], 0.0), kept


@dataclass(frozen=True)
class ContrastiveOptions:
    """Options of the contrastive loss; see ``contrastive_loss``."""

    objective: str = "infonce"
    logits: str = "cosine"
    temperature: float = 0.05
    margin: float = 0.3
    mixed: str | None = None
    mix_lambda: float = 0.2
    hard_negative_weight: float = 1.0


class Contrastive(LossTerm):
    """The contrastive loss as a loss term."""

    Options = ContrastiveOptions
    summary = "the contrastive loss; always part of training"

    def __init__(self, options: Any, encoder: nn.Module) -> None:
        super().__init__(options, encoder)
        self.parts = vars(options)

    def forward(self, views: Views, step: Step) -> Tensor:
        """The loss of the batch."""
        self.metrics = {}
        return contrastive_loss(
            views.embeddings,
            masks=views.masks,
            partners=step.partners,
            duplicates=step.duplicates,
            metrics=self.metrics,
            **self.parts,
        )


@torch.no_grad()
def similarity_summary(views: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Returns the mean cosines of a batch, as scalar tensors on its device.

    ``cos_pos``: positives (a_i, a+_i). ``cos_neg``: in-batch negatives (a_i, a+_j). ``cos_hard``: own labelled hard
    negatives. ``cos_syn``: own synthetic negatives (a_i, n_i). ``syn_harder``: share of synthetic negatives that are
    closer to their anchor than every in-batch negative. Rows whose mask is False are left out. ``alignment`` and
    ``uniformity`` (Wang and Isola 2020) are those of the batch: of its positives and of its anchors.
    """
    masks = masks or {}
    h = {name: normalize(z.float(), dim=-1) for name, z in views.items()}
    s = h["anchor"] @ h["positive"].T
    batch = len(s)
    summary = {"cos_pos": _mean(s.diagonal(), masks.get("positive"))}
    if batch > 1:
        summary["cos_neg"] = _mean_negative(s, masks)
        summary["alignment"] = 2 - 2 * summary["cos_pos"]  # |x - y|^2 of unit vectors
        close = torch.exp(-2 * (2 - 2 * h["anchor"] @ h["anchor"].T).clamp(min=0))
        summary["uniformity"] = torch.log((close.sum() - close.diagonal().sum()) / (batch * (batch - 1)))
    for name, key in (("hard_negative", "cos_hard"), ("synthetic", "cos_syn")):
        if name in h:
            own = (h["anchor"] * h[name]).sum(-1)
            summary[key] = _mean(own, masks.get(name))
            if name == "synthetic" and batch > 1:
                removed = torch.eye(batch, dtype=torch.bool, device=s.device)
                if "positive" in masks:
                    removed = removed | ~masks["positive"]
                others = s.masked_fill(removed, -math.inf)
                summary["syn_harder"] = _mean((own > others.max(1).values).float(), masks.get(name))
    return summary


def _mean_negative(s: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    """Mean of the off-diagonal similarities (B, B) of the rows that hold."""
    batch = len(s)
    if "positive" not in masks:
        return (s.sum() - s.diagonal().sum()) / (batch * (batch - 1))
    holds = masks["positive"]
    pairs = (holds[:, None] & holds[None, :]).fill_diagonal_(False)
    return (s * pairs).sum() / pairs.sum()


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    return values.mean() if mask is None else (values * mask).sum() / mask.sum()
