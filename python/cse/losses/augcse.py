"""AugCSE: a discriminator of edits, trained with gradient reversal (Tang, Kocyigit and Wijaya 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..errors import InputError
from ..views import RowStep, Views
from .base import RowTerm

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["AugCSE", "AugCSEOptions", "reversed_gradient"]


@dataclass(frozen=True)
class AugCSEOptions:
    """Options of AugCSE."""

    weight: Annotated[float, Field(ge=0, description="weight of the discriminator's loss")] = 0.005
    reversal: Annotated[float, Field(ge=0, description="factor of the encoder's reversed gradient")] = 1.0


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


def reversed_gradient(z: Tensor, scale: float) -> Tensor:
    """Returns ``z``; in the backward pass, its gradient is multiplied by ``-scale``.

    See Ganin and Lempitsky (2015, arXiv:1409.7495).
    """
    found: Tensor = _Reversed.apply(z, scale)  # type: ignore[no-untyped-call]
    return found


class AugCSE(RowTerm):
    """Trains a discriminator to predict which edit made a positive, and trains the encoder against it.

    The term is ``weight`` times the mean cross-entropy of the discriminator, a network of two layers: Linear(D, D),
    ReLU, Linear(D, number of edits). The discriminator minimises the term. The gradient of the term reaches the encoder
    multiplied by ``-reversal``. The edits are those of ``--positive one-of``; the released code of AugCSE uses
    transformations of NL-Augmenter. The default weight and reversal are taken from that code, which does not give the
    size of the network.

    Raises ``InputError`` if the positives do not come from ``one-of``.
    """

    Options = AugCSEOptions
    summary = "an adversarial discriminator of the edits of --positive one-of (AugCSE)"
    logged = ("edit_accuracy",)

    def __init__(self, options: AugCSEOptions, context: Context) -> None:
        super().__init__(options, context)
        if "edits" not in context.told:
            raise InputError("--loss-term augcse: needs positives made by several edits; use --positive one-of")
        size = context.trained.embedding_dim
        self.edits, self.purpose = context.told["edits"]
        self.discriminator = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, self.edits))

    @classmethod
    def implies(cls, options: AugCSEOptions) -> dict[str, Any]:
        """Returns ``one-of`` as the default of ``positive``."""
        return {"positive": "one-of"}

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns the sum of the weighted cross-entropies of these rows, and the number of rows."""
        options: AugCSEOptions = self.options
        z = views["positive"]
        # Repeats the draw with which ``one-of`` chose the edit of each row.
        edit = (step.uniform(self.purpose, 1)[:, 0] * self.edits).long().clamp(max=self.edits - 1)
        logits = self.discriminator(reversed_gradient(z, options.reversal))
        count = torch.full((), len(z), device=z.device)  # torch.tensor would wait for the device
        self.metrics = {"edit_accuracy": ((logits.argmax(1) == edit).sum().detach(), count)}
        return options.weight * cross_entropy(logits, edit, reduction="sum"), count
