"""Facts about a batch that a loss needs besides the embeddings: row numbers, the epoch, and which texts are equal.

The trainer of sentence-transformers passes token ids to a loss, not texts or row numbers. Equal texts are therefore
recognised by equal token ids. ``NegativesCollator`` adds row numbers and the epoch to the inputs of the first column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROW, EPOCH = "cse_row", "cse_epoch"
"""Keys in the inputs of the first column. Their values, ``(B,)`` int64, are the row numbers and the repeated epoch."""

MULTIPLIER = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Facts:
    """The facts of a batch of B rows."""

    rows: Tensor
    """``(B,)`` int64, keys of random numbers: the row numbers if they are given, else hashes of the anchors' token ids
    if every column has token ids, else the positions in the batch."""
    epoch: Tensor
    """``(B,)`` int64, the epoch, from 0; 0 if it is not known."""
    keys: tuple[Tensor, ...] | None
    """``(B,)`` int64 for each column, a hash of the token ids; None if a column has no token ids."""

    def gathered(self, gather: Callable[[Tensor], Tensor]) -> Facts:
        """Returns the facts of the whole batch, with the rows of all processes."""
        keys = None if self.keys is None else tuple(gather(each) for each in self.keys)
        return replace(self, rows=gather(self.rows), epoch=gather(self.epoch), keys=keys)

    @property
    def duplicates(self) -> Tensor | None:
        """``(B, B)`` bool, True for different rows with equal anchors or positives; None if token ids are missing."""
        if self.keys is None:
            return None
        found = self.keys[0][:, None] == self.keys[0][None, :]
        found |= self.keys[1][:, None] == self.keys[1][None, :]
        return found.fill_diagonal_(False)

    def changed(self, column: int) -> Tensor | None:
        """Returns ``(B,)`` bool, False where the column's text equals the anchor or positive of its row.

        Returns None if token ids are missing.
        """
        if self.keys is None:
            return None
        return (self.keys[column] != self.keys[0]) & (self.keys[column] != self.keys[1])


def facts_of(features: Sequence[Mapping[str, Any]]) -> Facts:
    """Returns the facts of a batch; ``features`` are the inputs of the model, by column."""
    found = [token_key(each) for each in features]
    known = [each for each in found if each is not None]
    keys = tuple(known) if len(known) == len(found) > 0 else None
    first = features[0] if features else {}
    rows = first.get(ROW)
    if rows is None:
        rows = keys[0] if keys is not None else torch.arange(batch_size(first))
    epoch = first.get(EPOCH)
    return Facts(rows, torch.zeros_like(rows) if epoch is None else epoch, keys)


def stripped(features: dict[str, Any]) -> dict[str, Any]:
    """Returns the inputs of a column without the keys that ``NegativesCollator`` adds; unchanged if there are none."""
    if ROW not in features:
        return features
    return {name: value for name, value in features.items() if name not in (ROW, EPOCH)}


def token_key(features: Mapping[str, Any]) -> Tensor | None:
    """Returns a 64-bit hash of the token ids of each text, ``(B,)`` int64, independent of padding.

    Returns None for inputs that are not padded token ids.
    """
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or ids.ndim != 2 or ids.shape != mask.shape:
        return None
    # The hash is a polynomial modulo 2**64, evaluated at a fixed odd number. Its coefficients are the token ids plus 1,
    # without padding.
    powers = np.cumprod(np.full(ids.shape[1], MULTIPLIER, dtype=np.uint64)).view(np.int64)
    place = (mask.cumsum(1) - 1).clamp(min=0)
    return ((ids + 1) * torch.from_numpy(powers).to(ids.device)[place] * (mask > 0)).sum(1)


def batch_size(features: Mapping[str, Any]) -> int:
    """Returns the number of rows in a column's inputs; for an ``EmbeddingBag``, ``offsets`` has one number per row."""
    for name in ("offsets", "input_ids"):
        if isinstance(features.get(name), Tensor):
            return len(features[name])
    return next(len(value) for value in features.values() if isinstance(value, Tensor) and value.ndim)
