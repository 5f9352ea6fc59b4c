"""The feature method ``mixtures``: the mixed negatives of MixCSE, with a gradient or without; loaded with ``--import``.

MixCSE stops the gradient of its mixed negatives, and so does ``--loss mixed``. This method is its ablation: with
``--loss standard``, the loss is that of ``--loss mixed``, except for the gradient and for the partners that are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import arange
from torch.nn.functional import normalize

from cse.features import FEATURE_AUGMENTATIONS
from cse.features.base import BatchStep, FeatureMethod, Views


@dataclass(frozen=True)
class MixturesOptions:
    """Options of the method: the weight of the positive in its mixture, and whether the mixture has a gradient."""

    mix_lambda: float = 0.2
    gradient: bool = True


class Mixtures(FeatureMethod):
    """Gives each anchor its positive, mixed with the positive of another row, as a negative of its own."""

    Options = MixturesOptions
    summary = "mixed negatives with a gradient (an ablation of MixCSE)"
    changes = frozenset({"negative"})

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with one further negative for each anchor; the other row is drawn uniformly."""
        options: MixturesOptions = self.options
        h = normalize(views["positive"], dim=-1)
        rows = arange(len(h), device=h.device)
        skipped = (step.uniform("mixtures", 1)[:, 0] * (len(h) - 1)).long()
        partners = (rows + 1 + skipped) % len(h)
        mixture = normalize(options.mix_lambda * h + (1 - options.mix_lambda) * h[partners], dim=-1)
        negatives = (mixture if options.gradient else mixture.detach())[:, None]
        return views.replace(own_negatives={**views.own_negatives, "anchor": negatives})


FEATURE_AUGMENTATIONS.register("mixtures", Mixtures)
