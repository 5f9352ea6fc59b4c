"""Global orthogonal regularisation: cosines of different sentences are spread (Zhang et al. 2017, arXiv:1708.06320)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import normalize, relu

from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views


@dataclass(frozen=True)
class OrthogonalityOptions:
    """Options of the regularisation; the defaults are those of sentence-transformers."""

    mean: Annotated[float, Ge(0), Opt("weight of the squared mean of the cosines")] = 1.0
    second_moment: Annotated[float, Ge(0), Opt("weight of the excess of their mean square over 1 / D")] = 1.0


def spread(z: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the squared mean of the cosines of different rows, and the excess of their mean square over 1 / D. ``z``
    is ``(B, D)``; rows that are not ``valid`` ``(B,)`` are left out."""
    h = normalize(z, dim=-1)
    kept = (valid[:, None] & valid[None, :]).fill_diagonal_(False)
    s, count = (h @ h.T) * kept, kept.sum().clamp(min=1)
    return (s.sum() / count).square(), relu(s.square().sum() / count - 1 / z.shape[1])


class Orthogonality(BatchTerm):
    """The mean over anchors and positives of the weighted terms of ``spread``, which are 0 for random directions."""

    Options = OrthogonalityOptions
    summary = "global orthogonal regularisation of the cosines (GOR), a rival of focal logits"
    recordable = True
    reads = frozenset({"anchor", "positive"})

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        options: OrthogonalityOptions = self.options
        total = views["anchor"].new_zeros(())
        for name in ("anchor", "positive"):
            mean, moment = spread(views[name], views.valid(name))
            total = total + (options.mean * mean + options.second_moment * moment) / 2
        return total
