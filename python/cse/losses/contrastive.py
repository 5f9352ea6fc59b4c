"""The contrastive losses: a function of named embeddings (views) with roles, and a loss term that calls it.

A loss has an objective, which determines the denominator of each anchor: ``infonce`` (anchors against candidates;
SimCSE, equation 1) or ``nt-xent`` (every view of a pair against every other; UNA); logits: ``cosine`` (s / tau) or
``focal`` (Focal-InfoNCE); further negatives: hard negatives as further columns of the similarity matrix, synthetic
negatives as further pairs, mixed negatives (MixCSE); and weights, masks and keys of rows. ``s`` is the cosine
similarity, ``tau`` the temperature. All losses are means over anchors, in nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ..views import BatchStep, Role, Views, roles_by_name
from .base import LOGITS, BatchTerm, mixture_similarity, release_similarities
from .options import ContrastiveOptions, incompatibility


@dataclass(frozen=True)
class Layout:
    """Layout of the similarity matrix: the views in its rows and columns, and the column of each anchor's positive."""

    pairs: list[tuple[str, str]]  # the anchor and the positive of each pair of views
    anchors: list[str]
    candidates: list[str]
    columns: list[str]  # views that are used as negatives only; their columns follow the candidates'
    target: Tensor  # (M,) int64, column of each anchor's positive
    sizes: dict[str, int]  # number of rows by view name

    def place(self, names: list[str], name: str) -> slice:
        """Returns the rows or columns of a view, of those that belong to the views ``names``."""
        start = sum(self.sizes[other] for other in names[: names.index(name)])
        return slice(start, start + self.sizes[name])


def contrastive_loss(
    views: Mapping[str, Tensor],
    *,
    objective: str = "infonce",
    logits: str = "cosine",
    temperature: float = 0.05,
    margin: float = 0.3,
    mixed: str | None = None,
    mix_lambda: float = 0.2,
    stop_gradient: bool = True,
    partners: Tensor | None = None,
    hard_negative_weight: float = 1.0,
    masks: Mapping[str, Tensor] | None = None,
    keys: Mapping[str, Tensor] | None = None,
    taught: Tensor | None = None,
    roles: Mapping[str, Role] | None = None,
    log_weights: Mapping[tuple[str, str], Tensor] | None = None,
    own_negatives: Mapping[str, Tensor] | None = None,
    compared: Mapping[str, Tensor] | None = None,
    metrics: dict[str, Any] | None = None,
) -> Tensor:
    """Computes the contrastive loss of a batch: the mean over all valid anchors, a scalar; 0 if there are none.

    Args:
        views: Embeddings by name, any float dtype, not necessarily normalised: ``(B, D)`` for anchors and positives,
            ``(R, D)`` with any R for negatives, which are in the denominator of every anchor.
        objective: ``infonce``: anchors against the candidates (the second view of each pair) and the negatives.
            ``nt-xent``: each embedding of a paired view against all other such embeddings and the negatives.
        logits: ``cosine`` or ``focal``, with the ``margin`` m; mixed and hard negatives are scored like others.
        mixed: ``paper``: one mixed negative per anchor, in its denominator only. ``release``: mixtures as in MixCSE's
            released code; see ``cse.losses.base``.
        mix_lambda: Weight of the anchor's own positive in its mixture, which is a constant for the gradient with
            ``stop_gradient``.
        partners: ``(M,)`` int64, the candidate that the positive of each row of all anchor views is mixed with
            (``mixed="paper"``). An anchor whose partner shares a row or a key with it has no mixed negative.
        hard_negative_weight: alpha; ln(alpha) is added to the logit of an ``anchor`` with each hard negative of its
            row (``hard_negative``, ``hard_negative_2``, ...).
        masks: ``(B,)`` bool by view name: False for rows that are used neither as anchors nor in denominators.
        keys, taught, log_weights, own_negatives, compared: See ``cse.views.Views``.
        roles: Roles by view name; default: see ``cse.views.roles_by_name``.
        metrics: A dict that receives ``p_pos``, the mean softmax probability of the positive; with ``mixed="paper"``,
            ``cos_mix``, the mean cosine of an anchor and its mixed negative; and with ``keys``, ``duplicates``, the
            number of rows of the first anchor view for which a row of any view is left out.

    >>> z = torch.eye(2)  # each anchor equals its positive and is orthogonal to the other one: -ln(e / (e + 1))
    >>> round(contrastive_loss({"anchor": z, "positive": z}, temperature=1.0).item(), 4)
    0.3133
    """
    layout = arrange(views, objective, roles)
    pairs = len(layout.pairs) > 1
    if problem := incompatibility(objective=objective, logits=logits, mixed=mixed, synthetic_pairs=pairs):
        raise ValueError(problem)
    if hard_negative_weight != 1.0 and "hard_negative" not in views:  # the weight would have no effect
        raise ValueError("hard_negative_weight: needs a column of hard negatives")
    shape = LOGITS[logits]
    anchors = torch.cat([views[name] for name in layout.anchors])
    candidates = torch.cat([views[name] for name in layout.candidates + layout.columns])
    s = normalize(anchors, dim=-1) @ normalize(candidates, dim=-1).T  # (M, K)
    if compared:
        others = [
            normalize(torch.cat([compared.get(name, views[name]) for name in names]), dim=-1)
            for names in (layout.anchors, layout.candidates + layout.columns)
        ]
        own = torch.zeros_like(s, dtype=torch.bool).scatter_(1, layout.target[:, None], True)
        s = torch.where(own, s, others[0] @ others[1].T)
    scores = shape(s, layout.target, temperature, margin)
    if objective == "nt-xent":  # exclude the similarity of each embedding with itself
        scores = scores.masked_fill(torch.eye(*s.shape, dtype=torch.bool, device=s.device), -math.inf)
    scores = _weighted(scores, layout, hard_negative_weight, log_weights or {})
    equal = _equal(Views(dict(views), dict(roles or {}), keys=dict(keys), taught=taught), layout) if keys else None
    extra: list[Tensor] = []  # further columns: own negatives and mixed negatives
    if own_negatives:
        similarity, missing = _own_similarities(views, layout, own_negatives)
        extra.append(shape(similarity, None, temperature, margin).masked_fill(missing, -math.inf))
    if mixed == "paper":
        assert partners is not None, "mixed negatives need partners; see cse.rng.partners"
        similarity, missing = _mixed_similarities(
            anchors, candidates, layout, partners, mix_lambda, equal, stop_gradient
        )
        extra.append(shape(similarity, None, temperature, margin).masked_fill(missing, -math.inf))
        if metrics is not None:
            metrics["cos_mix"] = _mean(similarity.detach()[:, 0], ~missing[:, 0])
    elif mixed == "release":
        first, second = layout.pairs[0]
        similarity = release_similarities(views[first], views[second], mix_lambda, stop_gradient)
        extra.append(shape(similarity, None, temperature, margin))
    scores = torch.cat([scores, *extra], dim=1) if extra else scores
    kept = None
    if masks or equal is not None:
        scores, kept = _apply_masks(scores, layout, masks or {}, equal, mixed, metrics)
    if metrics is not None:
        with torch.no_grad():
            metrics["p_pos"] = _mean((-cross_entropy(scores, layout.target, reduction="none")).exp(), kept)
    if kept is None:
        return cross_entropy(scores, layout.target)
    losses = cross_entropy(scores, layout.target, reduction="none")
    return torch.where(kept, losses, 0.0).sum() / kept.sum().clamp(min=1)


def arrange(views: Mapping[str, Tensor], objective: str, roles: Mapping[str, Role] | None = None) -> Layout:
    """Returns the layout of the similarity matrix for these views."""
    roles = roles or roles_by_name(views)
    named = {role: [name for name in views if roles[name] == role] for role in ("anchor", "positive", "negative")}
    pairs = list(zip(named["anchor"], named["positive"], strict=True))
    sizes = {name: len(z) for name, z in views.items()}
    batch, device = sizes[pairs[0][0]], views[pairs[0][0]].device
    if objective == "infonce":
        anchors, candidates = [first for first, _ in pairs], [second for _, second in pairs]
        target = torch.arange(len(pairs) * batch, device=device)
    elif objective == "nt-xent":
        anchors = candidates = [name for pair in pairs for name in pair]
        index = torch.arange(len(anchors) * batch, device=device)
        target = (index // batch ^ 1) * batch + index % batch  # the other view of the pair, the same row
    else:
        raise ValueError(f"objective: {objective!r} is unknown; choose infonce or nt-xent")
    return Layout(pairs, anchors, candidates, named["negative"], target, sizes)


def _weighted(
    scores: Tensor, layout: Layout, hard_negative_weight: float, log_weights: Mapping[tuple[str, str], Tensor]
) -> Tensor:
    """Returns the logits plus ln(alpha) for each anchor's own hard negatives, and plus the log-weights of pairs."""
    names = layout.candidates + layout.columns
    if hard_negative_weight != 1.0:
        own = torch.arange(layout.sizes["anchor"], device=scores.device)
        for name in [name for name in layout.columns if name.startswith("hard_negative")]:
            column, weight = layout.place(names, name).start + own, scores.new_full((), math.log(hard_negative_weight))
            scores = scores.index_put((own, column), weight, accumulate=True)
    for (anchor, other), weights in log_weights.items():
        if anchor in layout.anchors and other in names:
            scores[layout.place(layout.anchors, anchor), layout.place(names, other)] += weights
    return scores


def _equal(views: Views, layout: Layout) -> Tensor:
    """Returns ``(M, K)`` bool, True where a text is no negative of an anchor, except for the anchor's own positive."""
    names = layout.candidates + layout.columns
    rows = [torch.cat([views.equal(one, other) for other in names], dim=1) for one in layout.anchors]
    return torch.cat(rows).scatter_(1, layout.target[:, None], False)


def _mixed_similarities(
    anchors: Tensor,
    candidates: Tensor,
    layout: Layout,
    partners: Tensor,
    mix_lambda: float,
    equal: Tensor | None,
    stop_gradient: bool,
) -> tuple[Tensor, Tensor]:
    """Returns the cosines ``(M, 1)`` of anchors with their mixed negatives (MixCSE), and a mask of the same shape.

    The mask is True for anchors whose partner comes from their own row or, by ``equal``, shares a key with them.
    """
    batch = layout.sizes[layout.pairs[0][0]]
    alone = partners % batch == torch.arange(len(anchors), device=anchors.device) % batch
    if equal is not None:
        alone = alone | equal.gather(1, partners[:, None])[:, 0]
    similarity = mixture_similarity(anchors, candidates, layout.target, partners, mix_lambda, stop_gradient)
    return similarity, alone[:, None]


def _own_similarities(views: Mapping[str, Tensor], layout: Layout, own: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Returns the cosines ``(M, k)`` of anchors with their own negatives, and a mask of the same shape.

    The mask is True for the missing entries of views that have fewer than the largest number of own negatives, k.
    """
    most = max(z.shape[1] for z in own.values())
    similarities, missing = [], []
    for name in layout.anchors:
        z = normalize(views[name], dim=-1)
        cosines = z.new_zeros(len(z), 0)
        if name in own:
            cosines = (z[:, None] * normalize(own[name], dim=-1)).sum(-1)
        place = torch.arange(most, device=z.device) >= cosines.shape[1]
        similarities.append(torch.cat([cosines, z.new_zeros(len(z), most - cosines.shape[1])], dim=1))
        missing.append(place.expand(len(z), -1))
    return torch.cat(similarities), torch.cat(missing)


def _apply_masks(
    scores: Tensor,
    layout: Layout,
    masks: Mapping[str, Tensor],
    equal: Tensor | None,
    mixed: str | None,
    metrics: dict[str, Any] | None,
) -> tuple[Tensor, Tensor]:
    """Returns the logits with invalid columns and ``equal`` entries masked, and ``(M,)`` bool: the valid anchors."""
    device = scores.device

    def valid(name: str) -> Tensor:
        mask = masks.get(name)
        return torch.ones(layout.sizes[name], dtype=torch.bool, device=device) if mask is None else mask

    holds = torch.cat([valid(name) for name in layout.candidates + layout.columns])  # (K,)
    rows = torch.cat([valid(name) for name in layout.anchors])  # (M,)
    kept = rows & holds[layout.target]
    extra = scores.shape[1] - len(holds)
    removed = ~holds.expand(len(scores), -1)
    if equal is not None:
        removed = removed | equal
        if metrics is not None:
            compared = ~scores[:, : len(holds)].isneginf()  # the rest is excluded anyway
            counted = (equal & holds & compared).any(1) & kept
            metrics["duplicates"] = counted[layout.place(layout.anchors, layout.pairs[0][0])].sum().float()
    if mixed == "release":
        # Mixture k combines rows k and k + 1. The first columns compare the first view with mixtures of the second
        # view; the last columns compare mixtures of the first view with the second view.
        first, second = (valid(name) for name in layout.pairs[0])
        whole = [mask & mask.roll(-1, 0) for mask in (first, second)]
        if equal is not None:  # neighbours that share a key are not mixed
            alike = equal[:, : len(first)].roll(-1, 1).diagonal()
            whole = [mask & ~alike for mask in whole]
        columns = torch.cat([whole[1].expand(len(scores), -1), whole[0][:, None] & second[None, :]], 1)
        removed = torch.cat([removed, removed.new_zeros(len(removed), extra - columns.shape[1]), ~columns], 1)
    elif extra:
        removed = torch.cat([removed, removed.new_zeros(len(removed), extra)], 1)
    scores = scores.masked_fill(removed, -math.inf)
    # Anchors that are left out get logits of 0, which keeps their gradient finite.
    return scores.masked_fill(~kept[:, None], 0.0), kept


class Contrastive(BatchTerm):
    """The contrastive loss as a loss term."""

    Options = ContrastiveOptions
    summary = "the contrastive loss of --loss standard, focal and mixed"
    recordable = True

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        # The number of duplicates is 0 if no keys are compared.
        self.metrics = {"duplicates": views["anchor"].new_zeros(())} if views.keys else {}
        return self.evaluate(views, step, metrics=self.metrics)

    def evaluate(self, views: Views, step: BatchStep, **changes: Any) -> Tensor:
        """Returns the loss for any views; ``changes`` replace arguments of ``contrastive_loss``. See ``BatchStep``."""
        settings = {**vars(self.options), **vars(views), "mixed": self.options.mixed, "partners": step.partners}
        settings["keys"] = views.keys if views.repeats else None
        for name in ("mixed_negatives", "mix_variant", "embeddings", "repeats"):
            del settings[name]
        return contrastive_loss(views.embeddings, **{**settings, **changes})

    def partner_views(self, roles: Mapping[str, Role]) -> tuple[int, list[str]] | None:
        """Returns the number and names of the candidate views if negatives are mixed as in the paper, else None."""
        if self.options.mixed != "paper":
            return None
        names = [name for name, role in roles.items() if role == "positive"]
        if self.options.objective == "nt-xent":
            names = [name for name, role in roles.items() if role in ("anchor", "positive")]
        return len(names), names


@torch.no_grad()
def similarity_summary(views: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Returns mean cosines and other statistics of the similarities in a batch, as scalar tensors on the views' device.

    ``cos_pos``: positives (a_i, a+_i). ``cos_neg``: in-batch negatives (a_i, a+_j). ``cos_hard``: labelled hard
    negatives of the anchor's row. ``cos_syn``: synthetic negatives of the anchor's row (a_i, n_i). ``syn_harder``:
    fraction of synthetic negatives that are closer to their anchor than every in-batch negative. Rows whose mask is
    False are left out, except from ``uniformity``. ``alignment`` (of anchors and positives) and ``uniformity`` (of all
    anchors) are defined as in Wang and Isola (2020).
    """
    masks = masks or {}
    h = {name: normalize(z.float(), dim=-1) for name, z in views.items()}
    s = h["anchor"] @ h["positive"].T
    batch = len(s)
    summary = {"cos_pos": _mean(s.diagonal(), masks.get("positive"))}
    if batch > 1:
        if "positive" in masks:  # rows and columns without a positive are left out
            pairs = (masks["positive"][:, None] & masks["positive"][None, :]).fill_diagonal_(False)
            summary["cos_neg"] = (s * pairs).sum() / pairs.sum()
        else:
            summary["cos_neg"] = (s.sum() - s.diagonal().sum()) / (batch * (batch - 1))
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
                hardest = s.masked_fill(removed, -math.inf).max(1).values
                # False for a row without an in-batch negative; if all are False, the mean is NaN.
                compared = hardest.isfinite()
                if name in masks:
                    compared = compared & masks[name]
                summary["syn_harder"] = _mean((own > hardest).float(), compared)
    return summary


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    return values.mean() if mask is None else (values * mask).sum() / mask.sum()
