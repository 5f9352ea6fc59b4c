"""What a step reads from the host: the tensors of a batch, and random numbers for its rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ... import rng
from ...encoder.device import copied_to, on_device
from ..batches.batches import Batch

Draw = tuple[tuple[slice, ...], str, int]


class Inputs:
    """The tensors of a batch on the device of the encoder, and random numbers for its rows."""

    def __init__(self, batch: Batch, device: str, seed: int = 0) -> None:
        self.batch, self.device, self.seed = batch, device, seed
        packed = batch.packed or batch.pack()
        self._memory = copied_to(packed.memory, device)
        views = packed.views(self._memory)
        self.rows: Tensor = views["rows",]
        """``(B,)`` int64 row numbers in the corpus."""
        self.partners = views.get(("partners",))
        """See ``Batch``."""
        self.masks, self.keys = (
            {name[1]: tensor for name, tensor in views.items() if name[0] == kind} for kind in ("mask", "keys")
        )
        """By block name; see ``Block.mask`` and ``Batch.keys``."""
        self.tokens = {name: {key: views["tokens", name, key] for key in block} for name, block in batch.tokens.items()}
        """See ``Batch.tokens``."""
        self.draws: list[tuple[Draw, Tensor]] = []
        self._known: Iterator[tuple[Draw, Tensor]] = iter(())
        self._drawn_before = 0

    def uniform(self, *parts: slice) -> Callable[[str, int], Tensor]:
        """Returns a function ``uniform(purpose, n)`` that returns uniform random numbers in [0, 1) for some rows.

        Its result, ``(rows, n)`` float32, is a pure function of (seed, epoch, row, purpose). The rows are those of the
        batch, from which each of ``parts`` takes a slice in turn.
        """

        def uniform(purpose: str, count: int) -> Tensor:
            draw = (parts, purpose, count)
            known, values = next(self._known, (None, None))
            if known != draw or values is None:
                values = on_device(self._drawn(*draw), self.device)
                self.draws.append((draw, values))
            return values

        return uniform

    def _drawn(self, parts: tuple[slice, ...], purpose: str, count: int) -> npt.NDArray[np.float32]:
        rows = self.batch.rows
        for part in parts:
            rows = rows[part]
        values = rng.Draws(self.seed, self.batch.epoch).uniform(rows, purpose, count).astype(np.float32)
        return np.minimum(values, np.nextafter(np.float32(1), np.float32(0)))  # rounding to float32 may give 1

    def refill(self, batch: Batch) -> None:
        """Replaces the tensors by those of another batch of the same shape, and draws its random numbers."""
        self.batch = batch
        self._memory.copy_((batch.packed or batch.pack()).memory, non_blocking=True)
        for draw, values in self.draws:
            values.copy_(on_device(self._drawn(*draw), self.device))
        self._known, self._drawn_before = iter(self.draws), len(self.draws)

    @property
    def drew_others(self) -> bool:
        """Whether the step has asked for other random numbers since ``refill``, or in another order."""
        return len(self.draws) != self._drawn_before


def shape_of(batch: Batch) -> Any:
    """Returns a key that is equal for batches that a step encodes and compares by the same operations."""
    blocks = tuple((name, block.views, block.shared, block.local) for name, block in batch.blocks.items())
    return (batch.packed or batch.pack()).layout, blocks, batch.repeats
