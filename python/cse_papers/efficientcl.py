"""EfficientCL: jitter of hidden states along their principal components, with a curriculum (Ye, Kim and Oh 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt, MinLen
from torch import Tensor

from cse import InputError
from cse.context import ModelContext
from cse.hooks.base import Hook, RowStep
from cse.options import If, Opt
from cse.rng import Draws


@dataclass(frozen=True)
class PCAJitterOptions:
    """Options of PCA jitter."""

    layers: Annotated[
        tuple[int, ...],
        MinLen(1),
        Opt("layers to draw from; 0: output of the embedding layer, n: output of the n-th block (not the last one)"),
    ] = (0,)
    ratio: Annotated[
        float,
        Gt(0),
        Opt(
            "standard deviation of alpha, the scale of the shift, if curriculum is none",
            needs=If("curriculum", ("none",)),
        ),
    ] = 0.1
    curriculum: Annotated[
        Literal["none", "discrete", "continuous"],
        Opt(
            "schedule of the ratio. none: constant; discrete: from 0.01 to 0.1 in ten stages; "
            "continuous: 0.01 + 0.1 * (completed fraction of the run)"
        ),
    ] = "discrete"
    variant: Annotated[
        Literal["paper", "release"],
        Opt("release: adds the sum of the shift's entries to all dimensions, as the released code does"),
    ] = "paper"


def pca_jitter(states: Tensor, mask: Tensor, alpha: Tensor, variant: str = "paper") -> Tensor:
    """Shifts all tokens of the sequences ``(n, T, D)`` along the principal components of their tokens.

    The tokens X of a sequence, divided by their Frobenius norm |X| and centred, have the covariance V diag(l) V'. The
    shift is |X| V (alpha l), the same for every token; ``alpha`` is ``(n,)``. The sign of each column of V is chosen so
    that its entry of largest magnitude is positive. No gradient flows through the shift. Padding, where ``mask`` ``(n,
    T)`` is 0, is not part of the covariance and is not changed. ``variant``: see ``PCAJitterOptions``.
    """
    weights = mask[..., None].to(torch.float32 if states.dtype != torch.float64 else torch.float64)
    with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
        x = states.to(weights.dtype) * weights
        count = weights.sum(1, keepdim=True)
        norm = x.flatten(1).norm(dim=1).clamp(min=1e-12)[:, None]
        x = x / norm[..., None]
        centred = (x - x.sum(1, keepdim=True) / count) * weights
        # The rank of the covariance is below the number of tokens, so a thin decomposition suffices.
        _, singular, axes = torch.linalg.svd(centred, full_matrices=False)  # (n, r), (n, r, D)
        variances = singular.square() / (count[:, 0] - 1).clamp(min=1)
        largest = axes.gather(2, axes.abs().argmax(2, keepdim=True))
        axes = axes * torch.where(largest < 0, -1.0, 1.0)
        shift = ((alpha.to(x)[:, None] * variances)[:, :, None] * axes).sum(1) * norm  # (n, D)
        if variant == "release":
            shift = shift.sum(1, keepdim=True).expand_as(shift)
    changed: Tensor = states + (shift[:, None] * weights).to(states.dtype)
    return changed


class PCAJitter(Hook):
    """Applies ``pca_jitter`` to one layer, drawn per step, with alpha ~ N(0, ratio^2) for each sequence."""

    Options = PCAJitterOptions
    summary = "shifts the hidden states of a layer along their principal components (EfficientCL)"

    def __init__(self, options: PCAJitterOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        depth = int(context.encoder.backbone.config.num_hidden_layers)
        for number in options.layers:
            if not 0 <= number < depth:
                raise InputError(
                    f"pca.layers: {number} is not a layer whose output goes into one of the {depth} blocks of "
                    f"{context.encoder.source.name}; give numbers from 0 to {depth - 1}"
                )

    def ratio(self, step: RowStep) -> float:
        """Returns the standard deviation of alpha at a step."""
        if self.options.curriculum == "discrete":
            return 0.01 * min(10, int(10 * step.progress) + 1)
        if self.options.curriculum == "continuous":
            return 0.01 + 0.1 * step.progress
        return float(self.options.ratio)

    def drawn(self, step: RowStep) -> int:
        """Returns the layer that is drawn for a step and a view."""
        u = Draws(step.seed, step.number).uniform(np.zeros(1, dtype=np.int64), f"{step.draws}pca layer")
        return int(self.options.layers[int(float(u[0, 0]) * len(self.options.layers))])

    def embedded(self, states: Tensor, tokens: dict[str, Tensor], step: RowStep) -> Tensor:
        return self.layer(0, states, tokens, step) if self.drawn(step) == 0 else states

    def layers(self, count: int, step: RowStep) -> list[int]:
        """Returns a list with the index of the block whose input is changed, or an empty list if there is none. Blocks
        are counted from 0, so layer n, the output of the n-th block, is the input of block n. If layer 0 was drawn, no
        block's input is changed."""
        number = self.drawn(step)
        return [number] if number else []

    def layer(self, number: int, states: Tensor, tokens: dict[str, Tensor], step: RowStep) -> Tensor:
        """Returns the changed states ``(n, T, D)``, in any layer."""
        alpha = step.normal("pca alpha", 1)[:, 0] * self.ratio(step)
        return pca_jitter(states, tokens["attention_mask"], alpha, self.options.variant)
