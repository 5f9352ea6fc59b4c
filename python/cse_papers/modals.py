"""MODALS: positives changed in embedding space (Cheung and Yeung 2021), a baseline in UNA's appendix C.2.

UNA's paper names the four operations but specifies neither their strength nor which other embeddings they use, and its
released code does not contain them. Here, the other embeddings are those of the same view in the batch, and the
strength is an option.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor
from torch.nn.functional import normalize

from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class ModalsOptions:
    """Options of MODALS."""

    kind: Annotated[
        Literal["interpolation", "extrapolation", "linear", "noise"],
        Opt(
            "interpolation: towards the closest other row; extrapolation: away from the mean; "
            "linear: by the difference of two other rows; noise: by random noise"
        ),
    ] = "interpolation"
    magnitude: Annotated[float, Ge(0), Opt("m, the strength of the change (not published)")] = 0.2
    view: Annotated[Literal["anchor", "positive"], Opt("the view that is changed")] = "positive"
    detach: Annotated[bool, Opt("compute no gradient through the other rows, the mean and the standard deviation")] = (
        True
    )


class Modals(FeatureMethod):
    """Changes the embeddings x of a view by one of four operations, with m the magnitude.

    - ``interpolation``: x + m (y - x), with y the other row closest to x by cosine. (This follows the paper;
      the released code takes the farthest row of a random sample.)
    - ``extrapolation``: x + m (x - mean).
    - ``linear``: x + m (y1 - y2), with y1 and y2 two different other rows, drawn at random.
    - ``noise``: x + m sd e, with sd the standard deviation of each dimension and e standard normal.
    """

    Options = ModalsOptions
    summary = "changes the positives' embeddings with other rows or noise (MODALS)"
    recordable = True

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with one of them changed; ``linear`` does not change a batch of fewer than three rows."""
        name = self.options.view
        return views.replace(embeddings={**views.embeddings, name: self.changed(views[name], step)})

    def changed(self, x: Tensor, step: BatchStep) -> Tensor:
        """Returns the embeddings ``(B, D)`` after the operation."""
        pool = x.detach() if self.options.detach else x
        m, batch = float(self.options.magnitude), len(x)
        if self.options.kind == "interpolation":
            h = normalize(x.detach(), dim=-1)
            closest = (h @ h.T).fill_diagonal_(-torch.inf).argmax(1)
            return x + m * (pool[closest] - x)
        if self.options.kind == "extrapolation":
            return x + m * (x - pool.mean(0))
        if self.options.kind == "noise":
            deviation = pool.std(0, correction=0)
            return x + m * step.normal("modals noise", x.shape[1]).to(x) * deviation
        if batch < 3:
            return x
        u = step.uniform("modals rows", 2).to(x)
        # Two different other rows, drawn as offsets from the next row; the second offset skips the first.
        first = (u[:, 0] * (batch - 1)).long()
        second = (u[:, 1] * (batch - 2)).long()
        second = second + (second >= first)
        own = torch.arange(batch, device=x.device)
        first, second = ((own + 1 + place) % batch for place in (first, second))
        return x + m * (pool[first] - pool[second])
