"""One look-up of the token embeddings for several forward passes.

The gradient of a look-up is as large as the whole embedding table, and is zeroed and accumulated once per pass. With
one look-up of the tokens in use, from which the passes take their rows, this happens once per step.
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
    """Context manager in which a transformer takes the embeddings of these tokens from one look-up.

    Gradients are equal to those of separate look-ups. Tokens that are not named are looked up as usual. Nothing changes
    for embeddings without a gradient, or of another class than ``nn.Embedding``.

    Args:
        backbone: A transformers model, used in eager mode, with the backward pass outside of this context.
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
