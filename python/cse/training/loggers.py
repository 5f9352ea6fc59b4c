"""Logging of a training run: metrics that remain on the device until they are read, the log file, and a timer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from ..errors import RunError
from ..io import dumps, naming, write_text
from ..registry import Registry

__all__ = ["LOGGERS", "Clock", "JsonLines", "Logger", "Loggers", "MetricBuffer", "check_finite"]


class MetricBuffer:
    """A buffer of the metrics of steps, which remain on the device until they are read.

    Reading copies all of them to the host in one transfer, so that steps do not synchronise with the device.
    """

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    def append(self, record: dict[str, Any], rows: Sequence[int] = ()) -> None:
        """Adds the record of a step, whose scalar tensors remain on the device; ``rows`` are named in errors."""
        self._records.append({**record, "rows": rows})

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
                record.pop("rows", None)
        return records


def check_finite(records: list[dict[str, Any]]) -> None:
    """Raises ``RunError`` for the first step whose loss or gradient is not finite."""
    for record in records:
        if "finite" in record:
            rows = ", ".join(str(row) for row in record.get("rows", ()))
            raise RunError(
                f"the loss or its gradient is not finite at step {record['step']} (rows {rows}); the weights of the "
                f"step before were kept; lower --lr, now {record['lr']:g}"
            )


class Logger:
    """Base class of loggers of a training run: four methods, in call order, that do nothing by default.

    Other packages add loggers as entry points of the group ``cse.loggers``; ``cse train --logger NAME`` uses one.
    """

    def start(self, folder: Path, config: str, step: int) -> None:
        """Called before training.

        Args:
            folder: Folder of the run.
            config: The configuration as TOML.
            step: Number of steps done; above 0 if the run is resumed, and records of later steps are then obsolete.
        """

    def log(self, records: Sequence[dict[str, Any]]) -> None:
        """Called every ``log_every`` steps with one record per step: ``step``, ``loss``, ``lr``, similarities."""

    def evaluation(self, step: int, record: dict[str, Any]) -> None:
        """Called after each evaluation with the number of steps done and the scores by name."""

    def close(self) -> None:
        """Called once at the end, also after an error."""


LOGGERS: Registry[type[Logger]] = Registry(
    "logger",
    "cse.loggers",
    {"jsonl": "cse.training.loggers:JsonLines", "tensorboard": "cse.training.tensorboard:TensorBoard"},
)
"""Loggers by name: ``cse train --logger NAME``; ``jsonl`` is always used."""


class JsonLines(Logger):
    """Appends records to ``log.jsonl`` in the folder of the run, which is flushed after every write."""

    def __init__(self) -> None:
        self._path = Path()
        self._file: IO[str] | None = None

    def start(self, folder: Path, config: str, step: int) -> None:
        """Opens the file; records of steps after ``step``, and the one that was being written, are removed."""
        self._path = folder / "log.jsonl"
        if self._path.exists():
            write_text(self._path, "".join(f"{line}\n" for line in self._lines(step)))
        with naming(self._path):
            self._file = open(self._path, "a", encoding="utf8")  # noqa: SIM115 - closed by close()

    def _lines(self, step: int) -> Iterator[str]:
        for line in self._path.read_text(encoding="utf8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    yield line
            except ValueError:
                continue

    def log(self, records: Sequence[dict[str, Any]]) -> None:
        """Appends records, one line each; raises ``OSError`` with the path if this fails."""
        assert self._file is not None, "call start first"
        with naming(self._path):
            self._file.writelines(dumps(record) + "\n" for record in records)
            self._file.flush()

    def evaluation(self, step: int, record: dict[str, Any]) -> None:
        """Appends the scores of an evaluation."""
        self.log([{"step": step, "event": "evaluation", **record}])

    def close(self) -> None:
        """Closes the file."""
        if self._file:
            self._file.close()


class Loggers(Logger):
    """Several loggers as one.

    Args:
        names: Names of loggers besides ``jsonl``.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._loggers = [LOGGERS.get(name, "--logger")() for name in dict.fromkeys(["jsonl", *names])]

    def start(self, folder: Path, config: str, step: int) -> None:
        """Starts all loggers."""
        for logger in self._loggers:
            logger.start(folder, config, step)

    def log(self, records: Sequence[dict[str, Any]]) -> None:
        """Passes records to all loggers."""
        for logger in self._loggers:
            logger.log(records)

    def evaluation(self, step: int, record: dict[str, Any]) -> None:
        """Passes scores to all loggers."""
        for logger in self._loggers:
            logger.evaluation(step, record)

    def close(self) -> None:
        """Closes all loggers."""
        for logger in self._loggers:
            logger.close()


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
