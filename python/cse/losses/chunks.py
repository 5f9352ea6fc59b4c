"""Forward passes in parts of a batch: in chunks whose activations are not kept, or in groups of similar length.

Chunks are gradient caching (Gao et al. 2021, GradCache).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["by_length", "in_chunks"]


def in_chunks(
    function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int | None
) -> Tensor:
    """Applies a function to chunks of its inputs, and concatenates the results.

    With a size, the activations of a chunk are recomputed in the backward pass, with the same state of the random
    number generators, so that those of one chunk are in memory at a time. The gradients are those of the chunks with
    all graphs kept. PyTorch's non-reentrant checkpoint does what GradCache does by hand in three passes: its cost is
    the same second forward pass.

    Args:
        function: Maps inputs of n rows to a tensor of n rows.
        inputs: Tensors of N rows by name.
        size: Rows of a chunk; None: one call with all rows, whose activations are kept.
    """
    if size is None:
        return function(dict(inputs))
    rows = len(next(iter(inputs.values())))
    found = []
    for start in range(0, rows, size):
        chunk = {name: values[start : start + size] for name, values in inputs.items()}
        found.append(checkpoint(function, chunk, use_reentrant=False))
    return torch.cat(found)


def by_length(function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """Applies a function to groups of rows of similar length, and returns the results in the order of the rows.

    A group has no columns that are padding in all its rows, so that less padding is computed. Up to ``size`` rows are
    passed as they are.

    Args:
        function: Maps tokens of n rows to a tensor of n rows, whatever their padding.
        inputs: Token ids, attention masks and so on, each ``(N, T)``.
        size: Rows of a group.
    """
    mask = inputs["attention_mask"]
    if len(mask) <= size:
        return function(dict(inputs))
    order = mask.sum(1).argsort(stable=True)
    found = []
    for rows in torch.split(order, size):
        used = mask[rows].any(0)
        found.append(function({name: values[rows][:, used] for name, values in inputs.items()}))
    return torch.cat(found)[order.argsort()]
