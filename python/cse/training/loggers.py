"""Logging of a training run: metrics that remain on the device until they are read, the log file, and a timer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import InputError
from ..io import dumps, naming

__all__ = ["Clock", "JsonLines", "MetricBuffer", "check_finite"]


class MetricBuffer:
    """A buffer of the metrics of steps, which remain on the device until they are read.

    Reading copies all of them to the host in one transfer, so that steps do not synchronise with the device.
    """

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    def append(self, record: dict[str, Any]) -> None:
        """Adds the record of a step; its scalar tensors remain on the device."""
        self._records.append(record)

    def read(self) -> list[dict[str, Any]]:
        """Returns the records since the last call, with tensors converted to floats.

        ``finite`` remains only in the record of a step whose loss or gradient was not finite, and which therefore did
        not update the weights; see ``check_finite``.
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
        return records


def check_finite(records: list[dict[str, Any]]) -> None:
    """Raises ``InputError`` for the first step whose loss or gradient is not finite."""
    for record in records:
        if "finite" in record:
            raise InputError(
                f"the loss or its gradient is not finite at step {record['step']}; lower --lr, now {record['lr']:g}"
            )


class JsonLines:
    """Context manager that appends records to a JSON Lines file, which is flushed after every write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> JsonLines:
        with naming(self.path):
            self._file = open(self.path, "a", encoding="utf8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()

    def write(self, *records: dict[str, Any]) -> None:
        """Appends records, one line each; raises ``OSError`` with the path if this fails."""
        assert self._file is not None, "enter the context first"
        with naming(self.path):
            self._file.writelines(dumps(record) + "\n" for record in records)
            self._file.flush()


class Clock:
    """A timer of training time that excludes evaluations."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._started = seconds, time.perf_counter()

    def seconds(self) -> float:
        """Returns the seconds of training so far."""
        return self._before + time.perf_counter() - self._started

    def leave_out(self, seconds: float) -> None:
        """Excludes this many seconds from the training time."""
        self._before -= seconds
