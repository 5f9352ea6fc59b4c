"""SSCL: hidden states of inner layers as negatives, against over-smoothing (Chen et al. 2023, arXiv:2305.06154)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge
from torch import Tensor

from cse import InputError
from cse.context import ModelContext
from cse.encoder.pooling import pooled_layers
from cse.losses.base import BatchTerm
from cse.options import Opt
from cse.views import BatchStep, Views, parts_of


@dataclass(frozen=True)
class SSCLOptions:
    """Options of SSCL; the default is that of the released code."""

    layers: Annotated[int, Ge(1), Opt("number of layers before the last one whose states are negatives")] = 2


class InnerStates:
    """Encodes tokens as the pooled states of inner layers, with the head that the last layer has."""

    def __init__(self, encoder: Any, layers: int) -> None:
        self.encoder, self.layers = encoder, layers
        self.embedding_dim = layers * encoder.embedding_dim

    @property
    def backbone(self) -> Any:
        """The transformer."""
        return self.encoder.backbone

    def embed(self, tokens: dict[str, Tensor]) -> Tensor:
        """Returns ``(n, layers * D)``: the embeddings of the layers, the last one first."""
        encoder, states = self.encoder, []
        blocks = parts_of(encoder.backbone)[1]
        handles = [
            block.register_forward_hook(lambda module, inputs, output: states.append(output))
            for block in blocks[-1 - self.layers : -1]
        ]
        try:
            encoder.embed(tokens)
        finally:
            for handle in handles:
                handle.remove()
        layers = (output[0] if isinstance(output, tuple) else output for output in reversed(states))
        return torch.cat([encoder.embedded({**tokens, "token_embeddings": layer}) for layer in layers], dim=-1)


class SSCL(BatchTerm):
    """Makes the loss of the run the mean of itself and itself with the states of inner layers as further negatives.

    The negatives of every anchor are the pooled states of the last layers before the last one, for all sentences of the
    batch (its own, too) and both views, 2 * ``layers`` * B in all. Their gradients are not stopped, as in the released
    code. The states come from a further pass over each view, with a dropout mask of its own; in the released code, they
    are those of the pass that computes the embeddings.
    """

    Options = SSCLOptions
    summary = "pooled states of inner layers as further negatives (SSCL)"
    recordable = True
    reads = frozenset({"anchor", "positive"})
    encodes = True

    def __init__(self, options: SSCLOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
        count = len(parts_of(encoder.backbone)[1])
        if options.layers >= count:
            raise InputError(f"sscl.layers must be less than {count}, the number of layers of the model")
        pooler = encoder.training_pooler
        if pooled_layers(pooler, count):
            raise InputError(f"--loss-term sscl needs the states of one layer, and --pooler {pooler} averages two")
        self.inner = (InnerStates(encoder, options.layers),)  # in a tuple, so that the encoder is not registered twice

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns half the difference between the loss with and without the further negatives."""
        if step.contrastive is None:
            raise InputError("--loss-term sscl needs --loss standard, focal or mixed")
        more = views
        for name in ("anchor", "positive"):
            layers = step.encode(name, self.inner[0]).chunk(self.options.layers, dim=-1)
            for number, z in enumerate(layers, 1):
                more = more.with_negatives(f"{name} layer {number}", z, views.masks.get(name))
        return (step.contrastive(more) - step.contrastive(views)) / 2
