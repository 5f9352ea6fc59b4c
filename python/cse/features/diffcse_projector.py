"""A projector with batch normalisation between the encoder and the loss (DiffCSE; Chuang et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .base import BatchStep, FeatureMethod, Views

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["Projector"]


class Projector(FeatureMethod):
    """Projects the embeddings before the loss, in training only.

    The layers are: linear (D, 2D), batch normalisation, ReLU, linear (2D, D), batch normalisation without affine
    parameters. Batch statistics are computed over the rows of all views, across all processes and all chunks of
    gradient caching.
    """

    summary = "a projector with batch normalisation, in training only (DiffCSE)"
    other_space = True

    def __init__(self, options: Any, context: Context) -> None:
        super().__init__(options, context)
        size = context.trained.embedding_dim
        self.layers = nn.Sequential(
            nn.Linear(size, 2 * size, bias=False),
            nn.BatchNorm1d(2 * size),
            nn.ReLU(),
            nn.Linear(2 * size, size, bias=False),
            nn.BatchNorm1d(size, affine=False),
        )

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the projected views."""
        names = list(views.embeddings)
        projected = self.layers(torch.cat([views[name] for name in names]))
        parts = projected.split([len(views[name]) for name in names])
        return views.replace(embeddings=dict(zip(names, parts, strict=True)))
