"""Grouping of rows by length, so that little padding is processed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["batches_by_length", "by_length"]


def batches_by_length(tokens: Sequence[Sequence[int]], size: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yields row indices in batches of ``size``, starting with the rows that have the most tokens."""
    order = np.argsort([-len(ids) for ids in tokens], kind="stable")
    for first in range(0, len(order), size):
        yield order[first : first + size]


def by_length(function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """Applies a function to groups of rows of similar length, and returns the results in the original order.

    Columns that are padding in every row of a group are removed, which leaves less padding to process. Inputs of at
    most ``size`` rows are passed to the function unchanged, in one call.

    Args:
        function: Maps the tokens of n rows to a tensor of n rows that does not depend on the padding.
        inputs: Token ids, attention masks and so on, each ``(N, T)``.
        size: Number of rows per group; the last group may be smaller.
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
