"""DCLR: noise negatives, and in-batch negatives weighted by a second encoder (Zhou et al. 2022, arXiv:2205.00656)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from cse import InputError
from cse.context import ModelContext
from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class DCLROptions:
    """Options of DCLR; the defaults are the published settings for BERT-base, except for ``model``."""

    noise: Annotated[float, Ge(0), Opt("noise negatives per sentence of the batch")] = 1.0
    ascent_steps: Annotated[int, Ge(0), Opt("steps of gradient ascent for each noise negative", needs="noise")] = 4
    ascent_rate: Annotated[float, Ge(0), Opt("step length of the gradient ascent", needs=("noise", "ascent_steps"))] = (
        1e-3
    )
    temperature: Annotated[
        float, Gt(0), Opt("temperature of the loss in the gradient ascent", needs=("noise", "ascent_steps"))
    ] = 0.05
    model: Annotated[
        str, Opt("second encoder, with the same tokenizer, that weights the negatives; empty: not used")
    ] = ""
    threshold: Annotated[
        float,
        Ge(-1),
        Le(1),
        Opt("phi: sentences whose cosine is at least this value are not negatives of each other", needs="model"),
    ] = 0.9
    variant: Annotated[
        Literal["paper", "release"],
        Opt("release: in-batch negatives in the gradient ascent's loss, and dropout in the second encoder"),
    ] = "paper"


def ascend(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    steps: int,
    rate: float,
    temperature: float,
    in_batch: bool = False,
) -> Tensor:
    """Moves noise ``(R, D)`` by normalised gradient ascent on the loss of anchors and positives ``(B, D)``.

    The noise vectors are the negatives; with ``in_batch``, so are the positives of the other anchors. ``rate`` is the
    step length, the same for each row: four steps of length 1e-3, the value in the released code, rotate a standard
    normal vector by about 1e-4 radians at D = 768.
    """
    a, p = (normalize(z.detach(), dim=-1) for z in (anchors, positives))
    fixed = a @ p.T if in_batch else (a * p).sum(-1, keepdim=True)
    target = torch.arange(len(a), device=a.device) * in_batch
    noise = noise.detach()
    for _ in range(steps):
        noise = noise.requires_grad_()
        with torch.enable_grad():
            logits = torch.cat([fixed, a @ normalize(noise, dim=-1).T], dim=1) / temperature
            (gradient,) = torch.autograd.grad(cross_entropy(logits, target), noise)
        noise = (noise + rate * normalize(gradient, dim=-1)).detach()
    return noise


class _WithDropout:
    """A frozen sentence encoder whose transformer applies dropout; its head stays in evaluation mode."""

    def __init__(self, frozen: Any) -> None:
        self.model = frozen.model
        self.backbone = frozen.model.backbone

    def embed(self, tokens: dict[str, Tensor]) -> Tensor:
        """Returns ``(n, D)``."""
        self.backbone.train()
        try:
            z: Tensor = self.model.embed(tokens)
        finally:
            self.backbone.eval()
        return z


class DCLR(FeatureMethod):
    """Adds noise negatives, and removes in-batch negatives that are too similar to the anchor.

    The weight of an in-batch negative is 0 if the cosine of the two sentences under a second, frozen encoder is at
    least ``threshold``, else 1. Noise, synthetic and labelled negatives have weight 1. As in the paper, the weight
    multiplies the exponential in the denominator.

    In the gradient ascent, the only negatives are the noise vectors, and the second encoder runs without dropout. With
    ``variant="release"``, as in the released code, in-batch negatives are also part of the loss of the ascent. The
    second encoder then applies dropout in training and encodes anchors and positives separately, so that the weights
    are not symmetric, and a weight is 0 only if the cosine is above ``threshold``.

    There are further differences from the released code, which both variants have: the released code multiplies the
    logit by the weight, so that it becomes 0 for weight 0, and sums binary cross-entropies; here, the trained encoder
    has the head that the run's pooler implies, and padding is masked in the attention.
    """

    Options = DCLROptions
    summary = "noise negatives, and in-batch negatives weighted by a second encoder (DCLR)"
    recordable = True
    changes = frozenset({"negative"})

    def __init__(self, options: DCLROptions, context: ModelContext) -> None:
        super().__init__(options, context)
        self.model: Any = None
        if not options.noise and not options.model:
            raise InputError("dclr.noise: is 0, and without dclr.model nothing else changes; set one of them")
        if options.model:
            self.model = context.load_model(options.model, "dclr.model", same_tokens=True)

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``noise``, and with the logarithms of the weights."""
        anchors, positives = views["anchor"], views["positive"]
        count = int(self.options.noise * len(anchors))
        if count:
            parts = [
                step.normal(f"dclr noise {number}", anchors.shape[1]) for number in range(-(-count // len(anchors)))
            ]
            noise = torch.cat(parts)[:count].to(anchors)
            options = self.options
            noise = ascend(
                noise,
                anchors,
                positives,
                options.ascent_steps,
                options.ascent_rate,
                options.temperature,
                in_batch=self.options.variant == "release",
            )
            views = views.with_negatives("noise", noise)
        if self.model is None:
            return views
        names = ("anchor", "positive")
        h = self.known(step, names)
        pairs = {}
        for first in names:
            for second in names:
                s = h[first] @ h[second].T
                close = s > self.options.threshold if self.options.variant == "release" else s >= self.options.threshold
                close = close.fill_diagonal_(False)
                pairs[first, second] = torch.zeros_like(s).masked_fill_(close, -torch.inf).to(anchors)
        return views.replace(log_weights={**views.log_weights, **pairs})

    @torch.no_grad()
    def known(self, step: BatchStep, names: Sequence[str]) -> dict[str, Tensor]:
        """Returns the second encoder's unit vectors ``(B, D)`` by view; for ``paper``, those of the anchors."""
        if self.options.variant == "paper":
            h = normalize(step.encode("anchor", self.model), dim=-1)
            return dict.fromkeys(names, h)
        encoder = _WithDropout(self.model) if self.training else self.model
        return {name: normalize(step.encode(name, encoder), dim=-1) for name in names}
