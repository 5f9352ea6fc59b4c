"""A loss on the first dimensions of the embeddings (Matryoshka; Kusupati et al. 2022, arXiv:2205.13147)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from ..errors import InputError
from ..views import BatchStep, Views
from .base import BatchTerm
from .options import MatryoshkaOptions, parse_dims

if TYPE_CHECKING:
    from ..context import Context

__all__ = ["Matryoshka"]


class Matryoshka(BatchTerm):
    """The run's contrastive loss on the first d dimensions of all views, summed over all d in ``dims``.

    Every d has weight 1. The full number of dimensions is skipped, because the run's loss already uses it; the sum of
    this term and the run's loss is the loss of the paper. Truncated embeddings are in effect normalised, because the
    contrastive loss uses cosines. The saved model records the dimensions.

    Raises ``InputError`` if a number in ``dims`` exceeds the number of dimensions of the embeddings, or if the encoder
    has a head that is not saved: the first dimensions of its output are not those of the saved embedding, which would
    therefore not be trained to be truncated.
    """

    Options = MatryoshkaOptions
    summary = "adds the run's contrastive loss on the first dimensions of the embeddings (Matryoshka)"

    def __init__(self, options: MatryoshkaOptions, context: Context) -> None:
        super().__init__(options, context)
        encoder = context.trained
        if encoder.head is not None and not encoder.keep_head:
            raise InputError(
                "--dims: would train the dimensions of the output of the MLP head, which is not saved; "
                "add --keep-head, or use a pooler without a head, such as --pooler cls_before_pooler"
            )
        width = encoder.embedding_dim
        dims = parse_dims(options.dims)
        if dims[0] > width:
            raise InputError(f"--dims {dims[0]}: the embeddings have {width} dimensions; give numbers below {width}")
        self.dims = [each for each in dims if each < width]
        modules = replace(encoder.source.modules, dims=(width, *self.dims))
        encoder.source = replace(encoder.source, modules=modules)

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the sum of the losses of the truncated embeddings."""
        assert step.contrastive is not None  # TrainConfig requires a contrastive loss
        total = views["anchor"].new_zeros(())
        for size in self.dims:
            cut = {name: z[..., :size] for name, z in views.embeddings.items()}
            own = {name: z[..., :size] for name, z in views.own_negatives.items()}
            total = total + step.contrastive(views.replace(embeddings=cut, own_negatives=own))
        return total
