"""Stateless random numbers: pure functions of (seed, epoch, row, stream); and sampling of mixing partners (MixCSE).

Results therefore do not depend on the number of threads or on how rows are batched. In training, PyTorch's generator is
used only for dropout and weight initialisation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

import cse._core as _core

# One stream per purpose; the streams of ``Draws`` start at PURPOSES. UNA uses the copy number (0, 1, 2, ...) as its
# stream; TfidfIndex.explain uses 2**64 - 1, and dropout masks use 2**64 - 2 (rust/src/random.rs).
SHUFFLE = 2**32
HOLD_OUT = 2**32 + 1
MIX = 2**33
SPANS = 2**34
PURPOSES = 2**48
# Number of rows whose bits are computed in one call.
PART = 2**18

Rows = npt.NDArray[np.int64]


def bits(seed: int, epoch: int, rows: npt.NDArray[Any], stream: int) -> npt.NDArray[np.uint64]:
    """Returns 64 random bits per row: ``(n,)`` uint64."""
    numbers = np.asarray(rows, dtype=np.int64).view(np.uint64)
    result = np.empty(len(numbers), dtype=np.uint64)
    for start in range(0, len(numbers), PART):  # in parts, so that the temporary results stay small
        part = slice(start, start + PART)
        result[part] = np.frombuffer(_core.random_bits(seed, epoch, numbers[part].data, stream), dtype="<u8")
    return result


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
    """Returns the same as ``np.argsort(keys, kind="stable")``, several times as fast for random 64-bit keys."""
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


def partners(
    rows: Rows,
    seed: int,
    epoch: int,
    anchor_views: int,
    candidate_views: int,
    valid: npt.NDArray[np.bool_] | None = None,
) -> npt.NDArray[np.int64]:
    """Samples the candidate with which the positive of each anchor is mixed.

    The result is ``(anchor_views * B,)`` int64: positions among the ``candidate_views * B`` candidates, both ordered by
    view, then by row. Each is drawn uniformly from the ``valid`` candidates, ``(candidate_views, B)``, of other rows;
    if there are none, it is a candidate of the anchor's own row, and the anchor then has no mixed negative.
    """
    batch = len(rows)
    own = np.arange(batch)
    # Within a view, the candidates for row n are counted in this order: n + 1, n + 2, ..., then 0, 1, ..., n - 1.
    others = (own[:, None] + 1 + np.arange(batch - 1)[None, :]) % batch  # (B, B - 1)
    chosen = []
    for view in range(anchor_views):
        random = bits(seed, epoch, rows, MIX + view)
        if valid is None or valid.all():
            draw = (random % np.uint64((batch - 1) * candidate_views)).astype(np.int64)
            chosen.append(draw // (batch - 1) * batch + others[own, draw % (batch - 1)])
            continue
        allowed = np.concatenate([valid[candidate][others] for candidate in range(candidate_views)], axis=1)
        places = np.concatenate([candidate * batch + others for candidate in range(candidate_views)], axis=1)
        counts = allowed.sum(1)
        nth = (random % np.maximum(counts, 1).astype(np.uint64)).astype(np.int64)
        at = np.argmax(np.cumsum(allowed, axis=1) > nth[:, None], axis=1)
        chosen.append(np.where(counts > 0, places[own, at], view * batch + own))
    return np.concatenate(chosen)


def valid_candidates(
    names: Sequence[str], masks: Mapping[str, npt.NDArray[np.bool_]], rows: int
) -> npt.NDArray[np.bool_] | None:
    """Returns the argument ``valid`` of ``partners``, ``(len(names), rows)`` bool; None if no view has a mask."""
    every = np.ones(rows, dtype=bool)
    return np.stack([masks.get(name, every) for name in names]) if masks else None
