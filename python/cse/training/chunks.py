"""Forward passes in chunks whose activations are not kept (gradient caching; Gao et al. 2021, GradCache)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = ["chunks_of", "in_chunks"]


def chunks_of(rows: int, size: int | None) -> list[slice]:
    """Returns slices that divide ``rows`` rows into chunks of ``size`` rows (None: one chunk)."""
    size = size or max(rows, 1)
    return [slice(start, start + size) for start in range(0, rows, size)]


def in_chunks(
    function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int | None
) -> Tensor:
    """Applies a function to chunks of its inputs, and concatenates the results.

    If ``size`` is given, the activations of a chunk are recomputed in the backward pass, with the same state of the
    random number generators, and only the activations of one chunk are in memory at a time. The gradients are the same
    as if the activations of all chunks were kept. GradCache does this in three explicit steps; this function uses
    PyTorch's non-reentrant ``checkpoint``. Both run two forward passes.

    Args:
        function: Maps inputs of n rows to a tensor of n rows.
        inputs: Tensors of N rows by name.
        size: Rows per chunk; None: one call with all rows, whose activations are kept.
    """
    if size is None:
        return function(dict(inputs))
    rows = len(next(iter(inputs.values())))
    found = []
    for part in chunks_of(rows, size):
        chunk = {name: values[part] for name, values in inputs.items()}
        found.append(checkpoint(function, chunk, use_reentrant=False))
    return torch.cat(found)
