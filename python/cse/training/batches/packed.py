"""The tensors of a batch in one piece of memory, which is copied to a device at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

Name = tuple[str, ...]
# Every tensor begins at a multiple of this number of bytes.
ALIGNED = 16


@dataclass(frozen=True)
class Packed:
    """Tensors in one piece of memory."""

    memory: Tensor  # (n,) uint8
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
