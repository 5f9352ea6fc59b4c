"""The log of a run: metrics that stay on the device until they are read, and the log file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import InputError
from ..io import dumps, naming

__all__ = ["Clock", "JsonLines", "MetricBuffer"]


class MetricBuffer:
    """Metrics of steps, kept on the device until they are read.

    Reading copies all of them to the host at once, so that no step waits for the device.
    """

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    def append(self, record: dict[str, Any]) -> None:
        """Adds the record of a step; its scalar tensors stay where they are."""
        self._records.append(record)

    def read(self) -> list[dict[str, Any]]:
        """The records since the last call, with numbers in place of tensors.

        Raises ``InputError`` if the loss of a step was not finite; the weights were not updated in that step.
        """
        records, self._records = self._records, []
        keys = [(i, key) for i, record in enumerate(records) for key, value in record.items() if torch.is_tensor(value)]
        if keys:
            values = torch.stack([records[i][key].float() for i, key in keys]).tolist()
            for (i, key), value in zip(keys, values, strict=True):
                records[i][key] = value
        for record in records:
            if not record.pop("finite", True):
                raise InputError(
                    f"the loss or its gradient is not finite at step {record['step']}; lower --lr, now {record['lr']:g}"
                )
        return records


class JsonLines:
    """The log file of a run, one JSON object per line, flushed at every write."""

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
        """Appends the records."""
        assert self._file is not None, "enter the context first"
        with naming(self.path):
            self._file.writelines(dumps(record) + "\n" for record in records)
            self._file.flush()


class Clock:
    """Training time without the pauses for evaluation."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._before, self._started = seconds, time.perf_counter()

    def seconds(self) -> float:
        """Seconds of training so far."""
        return self._before + time.perf_counter() - self._started

    def leave_out(self, seconds: float) -> None:
        """Leaves out a pause."""
        self._before -= seconds
