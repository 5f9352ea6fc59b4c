"""Stateless random numbers: pure functions of (seed, epoch, row, stream).

Results therefore do not depend on the number of threads or on how rows are batched. In training, PyTorch's generator is
used only for dropout and weight initialisation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from . import _core

__all__ = [
    "CROP",
    "DELETE",
    "HOLD_OUT",
    "MIX",
    "PURPOSES",
    "SHUFFLE",
    "SPANS",
    "Draws",
    "bits",
    "permutation",
    "stable_order",
    "uniform",
]

# One stream per purpose; the streams of ``Draws`` start at PURPOSES. UNA uses the copy number (0, 1, 2, ...) as its
# stream; TfidfIndex.explain uses 2**64 - 1 (rust/src/random.rs).
SHUFFLE = 2**32
HOLD_OUT = 2**32 + 1
MIX = 2**33
SPANS = 2**34
CROP = 2**35
DELETE = 2**36
PURPOSES = 2**48
# Number of rows whose bits are computed in one call.
PART = 2**18

Rows = npt.NDArray[np.int64]


def bits(seed: int, epoch: int, rows: npt.NDArray[Any], stream: int) -> npt.NDArray[np.uint64]:
    """Returns 64 random bits per row: ``(n,)`` uint64."""
    numbers = np.asarray(rows, dtype=np.int64).view(np.uint64)
    found = np.empty(len(numbers), dtype=np.uint64)
    for start in range(0, len(numbers), PART):  # in parts, so that the temporary results stay small
        part = slice(start, start + PART)
        found[part] = np.frombuffer(_core.random_bits(seed, epoch, numbers[part].data, stream), dtype="<u8")
    return found


def uniform(seed: int, epoch: int, rows: npt.NDArray[Any], stream: int) -> npt.NDArray[np.float64]:
    """Returns one uniform number in [0, 1) per row: ``(n,)`` float64, multiples of 2**-53."""
    return (bits(seed, epoch, rows, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Draws:
    """Random numbers for a method in one epoch; each is a function of (seed, epoch, row, purpose)."""

    seed: int
    epoch: int

    def uniform(self, rows: npt.NDArray[Any], purpose: str, count: int = 1) -> npt.NDArray[np.float64]:
        """Returns ``count`` uniform numbers in [0, 1) for each row.

        Args:
            rows: ``(n,)`` row numbers.
            purpose: What the numbers are for, in words; numbers for different purposes are independent.
            count: How many numbers per row, at most 65,536. The first numbers do not depend on the count.

        Returns:
            ``(n, count)`` float64.
        """
        stream = PURPOSES + (crc32(purpose.encode()) << 16)
        columns = [uniform(self.seed, self.epoch, rows, stream + number) for number in range(count)]
        return np.stack(columns, axis=1) if columns else np.empty((len(rows), 0))


def permutation(rows: Rows, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Returns the random order of ``rows`` in an epoch, as positions in ``rows``: a stable sort by random bits."""
    return stable_order(bits(seed, epoch, rows, SHUFFLE))


def stable_order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Returns the same as ``np.argsort(keys, kind="stable")``, several times as fast for random 64-bit keys.

    NumPy uses vector instructions in ``sort``, but not in a stable ``argsort``. Positions are therefore put in the low
    bits of the keys before sorting, and the few keys with equal upper bits are sorted again.
    """
    width = np.uint64(len(keys).bit_length())
    low = (np.uint64(1) << width) - np.uint64(1)
    packed = np.sort((keys & ~low) | np.arange(len(keys), dtype=np.uint64))
    order = (packed & low).view(np.int64)
    packed >>= width
    equal = np.flatnonzero(packed[1:] == packed[:-1])
    if len(equal):
        places = np.union1d(equal, equal + 1)
        rows = order[places]  # ascending among equal upper bits
        order[places] = rows[np.argsort(keys[rows], kind="stable")]
    return order
