"""GS-InfoNCE: Gaussian noise as negatives (Wu et al. 2022, arXiv:2109.04321)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt

from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class GaussianOptions:
    """Options of the noise; the default is the published ratio, 192 noise vectors for a batch of 64.

    There is no option for the published standard deviations, because the length of a vector has no effect on a cosine.
    """

    negatives: Annotated[float, Gt(0), Opt("noise negatives per sentence of the batch")] = 3.0


class Gaussian(FeatureMethod):
    """Adds standard normal vectors, drawn anew for each batch, as negatives of every anchor."""

    Options = GaussianOptions
    summary = "Gaussian noise as negatives (GS-InfoNCE)"
    recordable = True
    changes = frozenset({"negative"})

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``noise``."""
        anchor = views["anchor"]
        per_row = -(-self.options.negatives // 1)  # rounded up, because each row draws the same number of vectors
        drawn = step.normal("gaussian", int(per_row) * anchor.shape[1]).reshape(-1, anchor.shape[1])
        count = round(self.options.negatives * len(anchor))
        return views.with_negatives("noise", drawn[torch.arange(count, device=drawn.device)].to(anchor))
