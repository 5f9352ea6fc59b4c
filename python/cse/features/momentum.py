"""A momentum encoder with a queue of negatives (ESimCSE; Wu et al. 2022, arXiv:2109.04380, section 3.2)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from .base import BatchStep, FeatureMethod, Views

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["Momentum", "MomentumOptions"]


@dataclass(frozen=True)
class MomentumOptions:
    """Options of the queue; the defaults are the published settings for BERT-base with batches of 64."""

    size: Annotated[int, Field(ge=1, description="length of the queue of embeddings from earlier batches")] = 160
    decay: Annotated[float, Field(ge=0, lt=1, description="decay of the moving average of the weights")] = 0.995
    variant: Annotated[
        Literal["paper", "release"],
        Field(description="head of the momentum encoder; paper: a moving average; release: that of the encoder"),
    ] = "paper"


class Momentum(FeatureMethod):
    """Adds the sentences of earlier batches, encoded by a moving average of the encoder, as further negatives.

    The momentum encoder starts as a copy of the encoder, and runs without dropout. If the encoder has a head, the
    embeddings in the queue have passed through the momentum encoder's head: a moving average of the encoder's head, as
    in the paper, or with ``variant="release"`` the encoder's head itself, with its weights at the step at which the
    embeddings are computed, as in the released code. Checkpoints contain the momentum encoder and the queue; neither is
    saved with the encoder.
    """

    Options = MomentumOptions
    queue: Tensor
    filled: Tensor
    summary = "a queue of negatives from a momentum encoder (ESimCSE)"
    changes = frozenset({"negative"})

    def __init__(self, options: MomentumOptions, context: Context) -> None:
        super().__init__(options, context)
        self.source = (context.trained,)  # not a submodule
        self.encoder = copy.deepcopy(context.trained).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(options.size, context.trained.embedding_dim))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def train(self, mode: bool = True) -> Momentum:
        """Sets the mode; in training, the momentum encoder applies its head, but no dropout."""
        super().train(mode)
        self.encoder.eval()
        self.encoder.training = mode  # forward then applies the head; the submodules stay in evaluation mode
        return self

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the momentum encoder towards the encoder."""
        ours, theirs = self.encoder.parameters(), self.source[0].parameters()
        for average, parameter in zip(ours, theirs, strict=True):
            average.lerp_(parameter, 1 - self.options.decay)
        head = self.source[0].head if self.options.variant == "release" else None
        if head is not None and self.encoder.head is not None:
            self.encoder.head.load_state_dict(head.state_dict())

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``queue``, then adds this batch's anchors to the queue."""
        assert step.encode is not None
        valid = torch.arange(len(self.queue), device=self.queue.device) < self.filled
        views = views.with_negatives("queue", self.queue.clone().to(views["anchor"]), valid)
        with torch.no_grad():
            keys = step.encode("anchor", self.encoder).to(self.queue)
            self.queue = torch.cat([keys, self.queue])[: len(self.queue)]
            self.filled = self.filled + len(keys)
        return views
