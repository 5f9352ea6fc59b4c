"""WhitenedCSE: shuffled group whitening, and several positives (Zhuo et al. 2023, arXiv:2305.17746)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn

from cse import InputError
from cse.context import ModelContext
from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class GroupWhiteningOptions:
    """Options of WhitenedCSE; the defaults are the published settings for BERT-base, except for ``epsilon``."""

    size: Annotated[int, Ge(1), Opt("dimensions per group; must divide the number of dimensions")] = 6
    positives: Annotated[int, Ge(1), Opt("positives per sentence; all but the first are further passes")] = 2
    epsilon: Annotated[float, Gt(0), Opt("added to the variances of the principal directions")] = 1e-5


class InverseRoot(torch.autograd.Function):
    """The inverse square root of symmetric positive definite matrices ``(G, n, n)``.

    The gradient of an eigendecomposition is infinite for equal eigenvalues, that of their inverse square root is not:
    with eigenvalues l and eigenvectors U, it is U (F * U^T grad U) U^T, where F_ij = (l_i^-1/2 - l_j^-1/2) / (l_i -
    l_j) = -1 / (sqrt(l_i) sqrt(l_j) (sqrt(l_i) + sqrt(l_j))).
    """

    @staticmethod
    def forward(ctx: Any, matrices: Tensor) -> Tensor:
        """Returns the inverse square roots."""
        values, vectors = torch.linalg.eigh(matrices)
        ctx.save_for_backward(values, vectors)
        roots: Tensor = (vectors * values.rsqrt()[:, None]) @ vectors.mT
        return roots

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Returns the gradient of the matrices."""
        values, vectors = ctx.saved_tensors
        roots = values.sqrt()
        first, second = roots[:, :, None], roots[:, None]
        inner = vectors.mT @ gradients[0] @ vectors / (first * second * (first + second))
        gradient: Tensor = -vectors @ inner @ vectors.mT
        return gradient


def group_whitening(z: Tensor, order: Tensor, size: int, epsilon: float) -> Tensor:
    """Whitens groups of dimensions over the batch by ZCA, and returns ``(B, D)`` with the dimensions at their places.
    Each ``size`` dimensions in a row, in the order ``(D,)``, are a group. ``epsilon`` is added to the diagonals of the
    covariances."""
    groups = z[:, order].view(len(z), -1, size).transpose(0, 1)  # (D / size, B, size)
    groups = groups - groups.mean(1, keepdim=True)
    covariance = groups.mT @ groups / len(z) + epsilon * torch.eye(size, dtype=z.dtype, device=z.device)
    root: Tensor = InverseRoot.apply(covariance)  # type: ignore[no-untyped-call]
    whitened = (groups @ root).transpose(0, 1).reshape(len(z), -1)
    return whitened[:, order.argsort()]


class GroupWhitening(FeatureMethod):
    """Whitens groups of dimensions over the batch, applies an MLP (linear, tanh), and adds further positives.

    The dimensions are assigned to groups at random, anew for each view and step. With ``positives`` = P, the anchors
    are encoded P - 1 further times, and the loss is the mean over p of the loss with the p-th positives; in the
    denominator of each are only its own positives. Neither the whitening nor the MLP is part of the saved encoder, so
    the pooler is ``cls_before_pooler`` by default.

    Differences from the released code: the views of a sentence stay together (in the release, a view is a third of the
    sentences with all their dropout masks), the loss is the mean instead of the sum over positives, and ``epsilon``
    bounds the eigenvalues.
    """

    Options = GroupWhiteningOptions
    summary = "whitening of random groups of dimensions, and further positives (WhitenedCSE)"
    other_space = True
    encodes = True

    def __init__(self, options: GroupWhiteningOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        size = context.encoder.embedding_dim
        if size % options.size:
            raise InputError(f"group-whitening.size must divide {size}, the number of dimensions, got {options.size}")
        self.layers = nn.Sequential(nn.Linear(size, size), nn.Tanh())
        nn.init.normal_(self.layers[0].weight, std=0.02)  # type: ignore[arg-type]
        nn.init.zeros_(self.layers[0].bias)  # type: ignore[arg-type]

    @classmethod
    def implies(cls, options: GroupWhiteningOptions) -> dict[str, Any]:
        """Returns ``cls_before_pooler`` as the default of ``pooler``, since the MLP follows the whitening."""
        return {"pooler": "cls_before_pooler"}

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the whitened views, with further views of anchors and positives."""
        options: GroupWhiteningOptions = self.options
        encoded = dict(views.embeddings)
        further = range(2, options.positives + 1)
        if further and step.partners is not None:
            raise InputError("group-whitening.positives must be 1 with mixed negatives, which have one positive each")
        for number in further:
            encoded[f"positive {number}"] = step.encode("anchor")
        embeddings = {}
        for name, z in encoded.items():
            order = step.uniform(f"group whitening {name}", z.shape[1])[0].argsort()
            embeddings[name] = self.layers(group_whitening(z, order, options.size, options.epsilon))
        roles, masks, weights, keys = dict(views.roles), dict(views.masks), dict(views.log_weights), dict(views.keys)
        pairs = [("anchor", "positive")]
        for number in further:
            pair = f"anchor {number}", f"positive {number}"
            embeddings[pair[0]] = embeddings["anchor"]
            roles |= {pair[0]: "anchor", pair[1]: "positive"}
            masks |= {name: views.masks["anchor"] for name in pair if "anchor" in views.masks}
            keys |= {name: views.keys["anchor"] for name in pair if views.keys}
            pairs.append(pair)
        never = encoded["anchor"].new_full((1, 1), -torch.inf)
        for first in pairs:
            for second in (pair for pair in pairs if pair != first):
                weights |= {(one, other): never for one in first for other in second}
        return views.replace(embeddings=embeddings, roles=roles, masks=masks, log_weights=weights, keys=keys)
