"""The loggers ``tensorboard`` and ``wandb``; each needs the package of its name."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .callbacks import Callback
from .settings.values import merge

if TYPE_CHECKING:
    from .run import Run

PROJECT = "cse"


class Tracker(Callback):
    """Base class of loggers that pass finite metrics (``train/...``) and scores (``eval/...``) to another program."""

    module = ""
    """Module that writes the metrics."""

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
        self._writer.add_text("config", f"```toml\n{run.config.to_toml()}\n```", step)

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
        project = os.environ.get("WANDB_PROJECT", PROJECT)
        settings = merge({**tomllib.loads(run.config.to_toml()), "given": None})
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
