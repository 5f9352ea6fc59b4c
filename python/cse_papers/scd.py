"""SCD: self-contrast and decorrelation, without negatives (Klein and Nabi 2022, arXiv:2203.07847)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn.functional import normalize

from cse.context import ModelContext
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views


@dataclass(frozen=True)
class SCDOptions:
    """Options of SCD; the defaults are the values of the released command for BERT-base."""

    alpha: Annotated[float, Ge(0), Opt("weight of the self-contrast")] = 1.0
    beta: Annotated[float, Ge(0), Opt("weight of the decorrelation")] = 0.005225
    off_diagonal: Annotated[float, Ge(0), Opt("weight of correlations between dimensions")] = 0.012
    temperature: Annotated[float, Gt(0), Opt("divisor of the cosines of the self-contrast")] = 0.05
    width: Annotated[int, Ge(1), Opt("width of the three layers of the projector")] = 4096


def decorrelation(first: Tensor, second: Tensor, off_diagonal: float) -> Tensor:
    """Returns the loss of Barlow Twins, sum_k (C_kk - 1)^2 + lambda sum_{k != l} C_kl^2; lambda is ``off_diagonal``. C
    is the cross-correlation matrix ``(D, D)`` of two views ``(B, D)``, which are standardised over the batch."""
    c = first.T @ second / len(first)
    diagonal = c.diagonal()
    others = c.square().sum() - diagonal.square().sum()
    return (diagonal - 1).square().sum() + off_diagonal * others


class SCD(BatchTerm):
    """alpha times the mean cosine of the two views, divided by the temperature, plus beta times ``decorrelation``.

    The first part pushes the anchor and the positive of each row apart. The second part decorrelates the dimensions of
    the projected views. The views need different dropout probabilities (``--anchor-dropout``, ``--positive-dropout``).
    """

    Options = SCDOptions
    summary = "self-contrast and decorrelation, without negatives (SCD)"
    recordable = True
    reads = frozenset({"anchor", "positive"})
    is_loss = True

    def __init__(self, options: SCDOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        size, width = context.encoder.embedding_dim, options.width
        self.projector = nn.Sequential(
            nn.Linear(size, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.BatchNorm1d(width),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
        )
        self.norm = nn.BatchNorm1d(width, affine=False)

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        options: SCDOptions = self.options
        z1, z2 = views["anchor"], views["positive"]
        first, second = (self.norm(self.projector(z)) for z in (z1, z2))
        cosine = (normalize(z1, dim=-1) * normalize(z2, dim=-1)).sum(-1).mean()
        spread = decorrelation(first, second, options.off_diagonal)
        self.metrics = {"decorrelation": spread.detach()}
        return options.alpha * cosine / options.temperature + options.beta * spread
