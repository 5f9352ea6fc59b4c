"""The tensors of a batch in one piece of memory, which is copied to a device at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .batches import Batch

Name = tuple[str, ...]
# Every tensor begins at a multiple of this number of bytes.
ALIGNED = 16


@dataclass(frozen=True)
class Packed:
    """Tensors in one piece of memory."""

    memory: Tensor
    """``(n,)`` uint8."""
    layout: tuple[tuple[Name, torch.dtype, tuple[int, ...]], ...]
    """Name, dtype and shape of each tensor, in the order in which they are stored."""

    def views(self, memory: Tensor) -> dict[Name, Tensor]:
        """Returns the tensors by name, as views of a copy of the memory on any device."""
        found, start = {}, 0
        for name, dtype, shape in self.layout:
            size = math.prod(shape) * dtype.itemsize
            found[name] = memory[start : start + size].view(dtype).view(shape)
            start += _space(size)
        return found


def _space(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def pack(tensors: Mapping[Name, Tensor]) -> Packed:
    """Returns copies of the tensors in one piece of memory."""
    layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
    packed = Packed(torch.empty(sum(_space(x.nbytes) for x in tensors.values()), dtype=torch.uint8), layout)
    for name, view in packed.views(packed.memory).items():
        view.copy_(tensors[name])
    return packed


def pack_batch(batch: Batch) -> Packed:
    """Returns the tensors that a step reads.

    They are ``rows``, ``partners``, and by block name ``mask``, ``keys`` and, with the name of the tensor, ``tokens``.
    """
    tensors: dict[Name, Tensor] = {("rows",): torch.from_numpy(batch.rows)}
    if batch.partners is not None:
        tensors["partners",] = torch.from_numpy(batch.partners)
    for name, block in batch.blocks.items():
        if block.mask is not None:
            tensors["mask", name] = torch.from_numpy(block.mask)
    tensors |= {("keys", name): key for name, key in batch.keys.items()}
    tensors |= {("tokens", name, key): values for name, block in batch.tokens.items() for key, values in block.items()}
    return pack(tensors)
