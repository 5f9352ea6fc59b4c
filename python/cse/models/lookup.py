"""A single lookup of the token embeddings for several forward passes.

The gradient of a lookup has the size of the whole embedding table. If each pass looks up its tokens separately, a
gradient of this size is zeroed and accumulated for every pass. Here, the tokens of all passes are looked up together,
and each pass takes its embeddings from the result, so there is only one such gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["one_lookup"]


@contextmanager
def one_lookup(backbone: Any, token_ids: Iterable[Tensor]) -> Iterator[None]:
    """Context manager in which a transformer takes the embeddings of the given tokens from a single lookup.

    The gradients are the same as with separate lookups. A pass that contains any other token does a separate lookup.
    Nothing changes if the embeddings need no gradient, have a ``max_norm``, or are not an ``nn.Embedding``.

    Args:
        backbone: A transformers model that runs in eager mode. The backward pass may run outside of the context.
        token_ids: Tensors of token ids, of any shape.
    """
    table = backbone.get_input_embeddings()
    flat = [ids.flatten() for ids in token_ids]
    if type(table) is not nn.Embedding or not table.weight.requires_grad or table.max_norm is not None or not flat:
        yield
        return
    used: Tensor = torch.unique(torch.cat(flat))
    place = torch.full((table.num_embeddings,), -1).index_put((used,), torch.arange(len(used)))
    rows = table(used)

    def forward(ids: Tensor) -> Tensor:
        places = place[ids]
        if bool((places < 0).any()):
            return type(table).forward(table, ids)
        return nn.functional.embedding(places, rows)

    table.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del table.forward
