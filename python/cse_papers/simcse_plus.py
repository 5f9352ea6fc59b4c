"""SimCSE++: negatives without dropout, and contrast of dimensions (Xu et al. 2023, arXiv:2305.13192)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor

from cse.context import ModelContext
from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import WithoutDropout

EPSILON = 1e-5  # as in PyTorch's batch normalisation


class OffDropout(FeatureMethod):
    """Compares each anchor with its negatives by embeddings of a further pass without dropout (section 4.1).

    The cosine of an anchor with its own positive stays that of the two views with dropout. The further pass has
    gradients, and takes about half the time of the encoder's passes. Labelled and synthetic negatives are encoded
    without dropout as well; views that other feature methods add are not. The pass has no hooks, and uses the encoder
    that is saved.
    """

    summary = "compares anchors and negatives without dropout (SimCSE++)"
    recordable = True
    encodes = True

    def __init__(self, options: Any, context: ModelContext) -> None:
        super().__init__(options, context)
        self.encoder = (WithoutDropout(context.encoder),)  # in a tuple, so that it is not registered as a module

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with their embeddings without dropout in ``compared``."""
        return views.replace(compared={name: step.encode(name, self.encoder[0]) for name in views.texts()})


@dataclass(frozen=True)
class DimensionsOptions:
    """Options of the contrast of dimensions; the defaults are those of the released code."""

    weight: Annotated[float, Ge(0), Opt("weight of the term")] = 0.1
    temperature: Annotated[float, Gt(0), Opt("divisor of the correlations")] = 5.0


def dimension_contrast(first: Tensor, second: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """Returns the mean over d of -C_dd + log sum_e exp C_de, with C the correlations of dimensions over temperature.

    C is ``(D, D)``: with the dimensions of both views ``(B, D)`` standardised over the ``valid`` rows of the batch,
    C_de is the mean product of dimension d of the first view and dimension e of the second one, divided by the
    temperature.
    """
    weights = (valid / valid.sum().clamp(min=1)).to(first.dtype)[:, None]

    def standardised(z: Tensor) -> Tensor:
        z = z - (weights * z).sum(0)
        return z * ((weights * z.square()).sum(0) + EPSILON).rsqrt()

    c = (weights * standardised(first)).T @ standardised(second) / temperature
    return (c.logsumexp(1) - c.diagonal()).mean()


class Dimensions(BatchTerm):
    """``weight`` times the contrast of the dimensions of anchors and positives (section 4.2, DCL)."""

    Options = DimensionsOptions
    summary = "contrast of the dimensions of the embeddings (DCL of SimCSE++)"
    recordable = True
    reads = frozenset({"anchor", "positive"})

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        options: DimensionsOptions = self.options
        z1, z2 = views["anchor"], views["positive"]
        return options.weight * dimension_contrast(z1, z2, views.valid("anchor", "positive"), options.temperature)
