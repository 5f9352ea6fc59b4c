"""Hardness weighting of negatives (Lan et al. 2025, LLaVE, equation 5; ``MultipleNegativesRankingLoss``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch.nn.functional import normalize

from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class HardnessOptions:
    """Options of the weighting; the default of ``alpha`` is that of the paper."""

    alpha: Annotated[float, Ge(0), Opt("factor of the cosine in the logarithm of a negative's weight")] = 9.0
    negatives: Annotated[
        Literal["all", "in-batch", "hard"],
        Opt("negatives that are weighted: all; those of other rows; or the row's own labelled or synthetic ones"),
    ] = "in-batch"


class Hardness(FeatureMethod):
    """Multiplies the term of a negative in the denominator by exp(alpha * cosine), without a gradient of the weight.

    With logits s / tau, the logit of a negative becomes s / tau + alpha * stop-gradient(s): similar negatives count
    more. Focal logits do so with a gradient through the weight.
    """

    Options = HardnessOptions
    summary = "weights of negatives that grow with their cosine, a rival of focal logits"
    recordable = True
    changes = frozenset({"negative", "positive"})

    @torch.no_grad()
    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the logarithms of the weights."""
        options: HardnessOptions = self.options
        h = {name: normalize(z, dim=-1) for name, z in views.embeddings.items()}
        pairs = list(zip(views.named("anchor"), views.named("positive"), strict=True))
        weights = dict(views.log_weights)
        for pair in pairs:
            for first in pair:
                for second in (*(name for names in pairs for name in names), *views.named("negative")):
                    s = options.alpha * h[first] @ h[second].T
                    own = torch.eye(*s.shape, dtype=torch.bool, device=s.device)
                    belongs = second in pair or second.startswith(("hard_negative", "synthetic"))
                    if second in pair or (options.negatives == "in-batch" and belongs):
                        s = s.masked_fill(own, 0.0)
                    if options.negatives == "hard":
                        s = s * (own & belongs)
                    weights[first, second] = weights[first, second] + s if (first, second) in weights else s
        return views.replace(log_weights=weights)
