"""Random choices as functions: every one is keyed by (seed, epoch, row) and its purpose.

Nothing here has a state, so a choice does not depend on the number of threads, on how rows were batched, or on
where a run was interrupted. Dropout alone uses the framework's generator.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _core

__all__ = ["HOLD_OUT", "MIX", "SHUFFLE", "bits", "partners", "shuffled"]

# One stream per purpose; UNA's negatives use the copy's number, 0, 1, 2, ...
SHUFFLE = 2**32
HOLD_OUT = 2**32 + 1
MIX = 2**33

Rows = npt.NDArray[np.int64]


def bits(seed: int, epoch: int, rows: npt.NDArray[Any], stream: int) -> npt.NDArray[np.uint64]:
    """64 random bits for each row."""
    return np.frombuffer(_core.random_bits(seed, epoch, rows.tolist(), stream), dtype="<u8")


def shuffled(rows: Rows, seed: int, epoch: int) -> Rows:
    """The rows in this epoch's order: sorted by their random bits."""
    return rows[np.argsort(bits(seed, epoch, rows, SHUFFLE), kind="stable")]


def partners(rows: Rows, seed: int, epoch: int, anchor_views: int, candidate_views: int) -> npt.NDArray[np.int64]:
    """For MixCSE: the candidate each anchor's positive is mixed with, uniform over views of other rows.

    Anchors and candidates are view by view, each view row by row. Returns ``(anchor_views * B,)``.
    """
    batch = len(rows)
    own = np.arange(batch)
    found = []
    for view in range(anchor_views):
        draw = bits(seed, epoch, rows, MIX + view) % np.uint64((batch - 1) * candidate_views)
        draw = draw.astype(np.int64)
        other = (own + 1 + draw % (batch - 1)) % batch
        found.append(draw // (batch - 1) * batch + other)
    return np.concatenate(found)
