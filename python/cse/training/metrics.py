"""Metrics of training steps, and a timer of training time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["Clock", "MetricBuffer"]


class MetricBuffer:
    """A buffer of the metrics of steps, which remain on the device until they are read.

    ``read`` copies all metrics to the host in one transfer, so that the host does not wait for the device at every
    step.
    """

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    def append(self, record: dict[str, Any], rows: Sequence[int] = ()) -> None:
        """Adds the record of a step, whose scalar tensors remain on the device; ``rows`` is for error messages."""
        self._records.append({**record, "rows": rows})

    def read(self) -> list[dict[str, Any]]:
        """Returns the records since the last call, with tensors converted to floats.

        ``finite`` and ``rows`` are removed, except from the record of a step whose loss or gradient was not finite.
        Such a step did not update the weights; see ``cse.training.not_finite``.
        """
        records, self._records = self._records, []
        keys = [(i, key) for i, record in enumerate(records) for key, value in record.items() if torch.is_tensor(value)]
        if keys:
            values = torch.stack([records[i][key].float() for i, key in keys]).tolist()
            for (i, key), value in zip(keys, values, strict=True):
                records[i][key] = value
        for record in records:
            if record.get("finite", True):
                record.pop("finite", None)
                record.pop("rows", None)
        return records


class Clock:
    """A timer of training time that excludes evaluations."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._started = seconds, time.perf_counter()

    def seconds(self) -> float:
        """Returns the elapsed training time in seconds."""
        return self._before + time.perf_counter() - self._started

    def leave_out(self, seconds: float) -> None:
        """Excludes this many seconds from the training time."""
        self._before -= seconds
