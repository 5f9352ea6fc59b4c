"""DCLR: noise negatives, and in-batch negatives weighted by a second encoder (Zhou et al. 2022, arXiv:2205.00656)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ..errors import InputError
from ..registry import OnlyIf
from .base import BatchStep, FeatureMethod, Views

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["DCLR", "DCLROptions", "ascend"]


@dataclass(frozen=True)
class DCLROptions:
    """Options of DCLR; the defaults are the published settings for BERT-base, except for ``model``."""

    noise: Annotated[float, Field(ge=0, description="noise negatives per sentence of the batch")] = 1.0
    ascent_steps: Annotated[
        int, Field(ge=0, description="steps of gradient ascent for each noise negative"), OnlyIf("noise")
    ] = 4
    ascent_rate: Annotated[
        float, Field(ge=0, description="step length of the gradient ascent"), OnlyIf("noise"), OnlyIf("ascent_steps")
    ] = 1e-3
    temperature: Annotated[
        float,
        Field(gt=0, description="temperature of the loss in the gradient ascent"),
        OnlyIf("noise"),
        OnlyIf("ascent_steps"),
    ] = 0.05
    model: Annotated[
        str, Field(description="second encoder, with the same tokenizer, that weights the negatives; empty: not used")
    ] = ""
    threshold: Annotated[
        float,
        Field(
            ge=-1,
            le=1,
            description="phi: sentences whose cosine is at least this value are not negatives of each other",
        ),
        OnlyIf("model"),
    ] = 0.9


def ascend(noise: Tensor, anchors: Tensor, positives: Tensor, steps: int, rate: float, temperature: float) -> Tensor:
    """Moves noise vectors by normalised gradient ascent on the anchors' contrastive loss, with the noise as negatives.

    Args:
        noise: ``(R, D)``.
        anchors: ``(B, D)``.
        positives: ``(B, D)``.
        steps: Number of steps.
        rate: Step length, the same for each row. Four steps of length 1e-3, the value in the released code, rotate a
            standard normal vector by about 1e-4 radians at D = 768.
        temperature: Temperature of the loss.

    Returns:
        ``(R, D)``, detached.
    """
    a, p = (normalize(z.detach(), dim=-1) for z in (anchors, positives))
    own = (a * p).sum(-1, keepdim=True)
    target = torch.zeros(len(a), dtype=torch.long, device=a.device)
    noise = noise.detach()
    for _ in range(steps):
        noise = noise.requires_grad_()
        with torch.enable_grad():
            logits = torch.cat([own, a @ normalize(noise, dim=-1).T], dim=1) / temperature
            (gradient,) = torch.autograd.grad(cross_entropy(logits, target), noise)
        noise = (noise + rate * normalize(gradient, dim=-1)).detach()
    return noise


class DCLR(FeatureMethod):
    """Adds noise negatives, and removes in-batch negatives that are too similar to the anchor.

    The weight of an in-batch negative is 0 if the cosine of the two sentences under a second, frozen encoder is at
    least ``threshold``, else 1. Noise, synthetic and labelled negatives have weight 1. As in the paper, the weight
    multiplies the exponential in the denominator. The released code instead multiplies the logit, which becomes 0 for
    weight 0, and sums binary cross-entropies. There are two further differences: here, the trained encoder has the
    head that the run's pooler implies, and padding is masked in the attention.

    Raises ``InputError`` for a second encoder with a different tokenizer, or if there is neither a second encoder nor
    noise.
    """

    Options = DCLROptions
    summary = "noise negatives, and in-batch negatives weighted by a second encoder (DCLR)"
    changes = frozenset({"negative"})

    def __init__(self, options: DCLROptions, context: Context) -> None:
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
            noise = ascend(noise, anchors, positives, options.ascent_steps, options.ascent_rate, options.temperature)
            views = views.with_negatives("noise", noise)
        if self.model is None or step.encode is None:
            return views
        with torch.no_grad():
            h = normalize(step.encode("anchor", self.model), dim=-1)
            close = (h @ h.T >= self.options.threshold).fill_diagonal_(False)
            weights = torch.zeros_like(h @ h.T).masked_fill_(close, -torch.inf).to(anchors)
        names = ("anchor", "positive")
        pairs = {(first, second): weights for first in names for second in names}
        return views.replace(log_weights={**views.log_weights, **pairs})
