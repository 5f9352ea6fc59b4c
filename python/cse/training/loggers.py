"""Loggers: callbacks that ``--logger`` selects by name. This module does not import torch."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..io import LineFile, dumps, parse_json, write_text
from ..registry import Registry
from .callbacks import Callback
from .settings.flat import merge

if TYPE_CHECKING:
    from .run import Run

LOGGERS: Registry[type[Callback]] = Registry(
    "logger",
    "cse.loggers",
    {
        "jsonl": "cse.training.loggers:JsonLines",
        "tensorboard": "cse.training.loggers:TensorBoard",
        "wandb": "cse.training.loggers:Wandb",
    },
)
"""Callback classes by name, for ``cse train --logger NAME``; they take no arguments. ``jsonl`` is always used."""


class JsonLines(Callback):
    """Appends records to ``log.jsonl`` in the folder of the run, one JSON object per line, and flushes every write."""

    def __init__(self) -> None:
        self._path = Path()
        self._file: LineFile | None = None

    def on_train_begin(self, run: Run) -> None:
        """Opens the file; for a resumed run, removes incomplete records and records of steps that will be repeated."""
        self._path = run.folder / "log.jsonl"
        if self._path.exists():
            write_text(self._path, "".join(f"{line}\n" for line in self._lines(run.state.step)))
        self._file = LineFile(self._path)

    def _lines(self, step: int) -> Iterator[str]:
        for line in self._path.read_text(encoding="utf8", errors="replace").splitlines():
            with suppress(InputError, KeyError, TypeError):
                if parse_json(line, dict[str, Any], self._path)["step"] <= step:
                    yield line

    def on_log(self, records: Sequence[dict[str, Any]]) -> None:
        """Appends records; raises ``OSError`` with the path if they cannot be written."""
        assert self._file is not None, "call on_train_begin first"
        self._file.append(*(dumps(record).encode() for record in records), flush=False)

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        self.on_log([{"step": step, "event": "evaluation", **record}])

    def close(self) -> None:
        if self._file:
            self._file.close()


class Tracker(Callback):
    """Base class of loggers that pass finite metrics (``train/...``) and scores (``eval/...``) to another program."""

    module: str  # module that writes the metrics

    def __init__(self) -> None:
        try:
            self.client: Any = import_module(self.module)
        except ImportError:
            name = type(self).__name__.lower()
            raise InputError(f"--logger {name}: {name} is not installed; run pip install {name}") from None

    def write(self, step: int, values: dict[str, float]) -> None:
        """Writes values by name."""
        raise NotImplementedError

    def on_log(self, records: Sequence[dict[str, Any]]) -> None:
        for record in records:
            self.write(record["step"], _finite("train", record))

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        self.write(step, _finite("eval", record))


class TensorBoard(Tracker):
    """Writes to ``tensorboard/`` in the folder of the run."""

    module = "torch.utils.tensorboard"

    def on_train_begin(self, run: Run) -> None:
        """Opens the event file; in a resumed run, hides the records of steps that will be repeated."""
        step = run.state.step
        self._writer = self.client.SummaryWriter(str(run.folder / "tensorboard"), purge_step=step + 1 if step else None)
        self._writer.add_text("config", f"```toml\n{run.settings.to_toml()}\n```", step)

    def write(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if hasattr(self, "_writer"):
            self._writer.close()


class Wandb(Tracker):
    """Writes to Weights & Biases, to the project of ``WANDB_PROJECT`` or ``cse``; a resumed run is continued there."""

    module = "wandb"

    def on_train_begin(self, run: Run) -> None:
        """Starts or continues the run named after the folder of the run."""
        name = run.folder.name
        project = os.environ.get("WANDB_PROJECT", "cse")
        settings = merge({**tomllib.loads(run.settings.to_toml()), "given": None})
        self._run = self.client.init(project=project, name=name, id=name, resume="allow", config=settings)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        if hasattr(self, "_run"):
            self._run.finish()


def _finite(group: str, record: dict[str, Any]) -> dict[str, float]:
    return {
        f"{group}/{name}": value
        for name, value in record.items()
        if isinstance(value, (int, float)) and name != "step" and math.isfinite(value)
    }
