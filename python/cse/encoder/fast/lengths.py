"""Batches of rows of similar length, and a single lookup of token embeddings for several forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

# Rows per group of similar length.
GROUP = 32


def batches_by_length(rows: Sequence[Sized], size: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yields row indices in batches of ``size``, starting with the longest rows."""
    order = np.argsort([-len(row) for row in rows], kind="stable")
    for first in range(0, len(order), size):
        yield order[first : first + size]


def by_length(function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """Applies a function to groups of ``size`` rows of similar length, without the columns that are padding in all."""
    mask = inputs["attention_mask"]
    if len(mask) <= size:
        return function(dict(inputs))
    order = mask.sum(1).argsort(stable=True)
    results = []
    for rows in torch.split(order, size):
        used = mask[rows].any(0)
        results.append(function({name: values[rows][:, used] for name, values in inputs.items()}))
    return torch.cat(results)[order.argsort()]


@contextmanager
def one_lookup(backbone: Any, token_ids: Iterable[Tensor]) -> Iterator[None]:
    """Context manager in which a transformer takes the embeddings of the given tokens from a single lookup.

    The backward pass then has one gradient of the size of the table, not one for each forward pass.
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
