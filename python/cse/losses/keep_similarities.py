"""A loss term that keeps the similarities of the base model, to prevent forgetting in training on new documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from ..views import BatchStep, Views
from .base import BatchTerm
from .options import KeepSimilaritiesOptions

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["KeepSimilarities", "similarity_divergence"]


def similarity_divergence(base: Tensor, z: Tensor, temperature: float, valid: Tensor | None = None) -> Tensor:
    """Returns the mean over rows of KL(p || q) between softmax distributions over the other rows of the batch.

    For row i, p is the softmax of cos(base_i, base_j) / temperature over the rows j != i; q is the same function of
    ``z``. This is distillation of similarities (Fang et al. 2021, SEED, arXiv:2101.04731) within a batch; the teacher
    is the model before training.

    Args:
        base: ``(B, D)`` embeddings of the base model, without a gradient.
        z: ``(B, D)`` embeddings of the trained encoder.
        temperature: Temperature of both distributions, above 0.
        valid: ``(B,)`` bool, False for rows that are left out of the mean and of all distributions. Default: all rows
            are valid.

    Returns:
        A scalar; 0 if fewer than three rows are valid, because a distribution over one other row cannot change.
    """
    rows = len(z)
    holds = torch.ones(rows, dtype=torch.bool, device=z.device) if valid is None else valid
    removed = torch.eye(rows, dtype=torch.bool, device=z.device) | ~holds[None, :]
    # A large negative number instead of -inf, so that rows without a valid column have finite gradients.
    logs = [
        log_softmax((normalize(each, dim=-1) @ normalize(each, dim=-1).T / temperature).masked_fill(removed, -1e4), -1)
        for each in (base, z)
    ]
    each_row = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)  # (B,)
    return torch.where(holds, each_row, 0.0).sum() / holds.sum().clamp(min=1)


class KeepSimilarities(BatchTerm):
    """``weight`` times the divergence of the encoder's similarities in a batch from those of the base model.

    The divergence is the mean of two values of ``similarity_divergence``, one for the anchors and one for the
    positives. The base model is the encoder before training, without dropout. It encodes the same texts in a forward
    pass without gradients, which takes about a third of the time of the encoder's forward and backward passes. The
    weights of the base model take additional memory.
    """

    Options = KeepSimilaritiesOptions
    summary = "keeps the similarities that the model had before training (self-distillation)"
    reads = frozenset({"anchor", "positive"})

    def __init__(self, options: KeepSimilaritiesOptions, context: Context) -> None:
        super().__init__(options, context)
        self.base = context.base

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the weighted divergence."""
        assert step.encode is not None
        names = ("anchor", "positive")
        found = [
            similarity_divergence(
                step.encode(name, self.base), views[name], self.options.temperature, views.masks.get(name)
            )
            for name in names
        ]
        total = torch.stack(found).mean()
        self.metrics = {"kept": total.detach()}
        weighted: Tensor = self.options.weight * total
        return weighted
