"""GIST: negatives that a guide finds too similar are left out (Solatorio 2024, arXiv:2402.16829)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch.nn.functional import normalize

from cse.context import ModelContext
from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class GISTOptions:
    """Options of GIST; the defaults are those of sentence-transformers, except for ``model``."""

    model: Annotated[str, Opt("guide, with the same tokenizer; empty: the model before training")] = ""
    margin: Annotated[float, Ge(0), Opt("how much less similar than the positive a negative must be")] = 0.0
    strategy: Annotated[
        Literal["absolute", "relative"], Opt("whether the margin is a cosine, or a fraction of the positive's cosine")
    ] = "absolute"


class GIST(FeatureMethod):
    """Leaves out the negatives of an anchor whose cosine under a guide is above that of the positive minus the margin.

    The guide is frozen and runs without dropout. If the positive is the sentence itself, its cosine under the guide is
    1, and only a margin leaves out negatives. Views that other feature methods add are not examined.
    """

    Options = GISTOptions
    summary = "leaves out negatives that a guide finds as similar as the positive (GIST)"
    recordable = True
    changes = frozenset({"negative", "positive"})

    def __init__(self, options: GISTOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        self.guide: Any = context.base
        if options.model:
            self.guide = context.load_model(options.model, "gist.model", same_tokens=True)

    @torch.no_grad()
    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with log-weights of -inf for the negatives that are left out."""
        options: GISTOptions = self.options
        encoded = views.texts()
        h = {name: normalize(step.encode(name, self.guide), dim=-1) for name in encoded}
        pairs = list(zip(views.named("anchor"), views.named("positive"), strict=True))
        weights = dict(views.log_weights)
        for pair in (pair for pair in pairs if set(pair) <= h.keys()):
            positive = (h[pair[0]] * h[pair[1]]).sum(-1, keepdim=True)
            margin = options.margin * (positive.abs() if options.strategy == "relative" else 1.0)
            for first in pair:
                for second in encoded:
                    s = h[first] @ h[second].T
                    removed = s > positive - margin
                    if second in pair:
                        removed.fill_diagonal_(False)
                    added = torch.zeros_like(s).masked_fill_(removed, -torch.inf).to(views[first])
                    known = weights.get((first, second))
                    weights[first, second] = added if known is None else known + added
        return views.replace(log_weights=weights)
