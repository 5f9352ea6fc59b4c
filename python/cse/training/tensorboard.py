"""The logger ``tensorboard``, which needs the package tensorboard (``pip install 'cse[tensorboard]'``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .callbacks import Callback

if TYPE_CHECKING:
    from .run import Run


class TensorBoard(Callback):
    """Writes finite metrics and scores as scalars to ``tensorboard/`` in the folder of the run."""

    def __init__(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise InputError("--logger: TensorBoard is not installed; run pip install 'cse[tensorboard]'") from None
        self._create = SummaryWriter
        self._writer: Any = None

    def on_train_begin(self, run: Run) -> None:
        """Opens the event file; in a resumed run, hides the records of steps that will be repeated."""
        step = run.state.step
        self._writer = self._create(str(run.folder / "tensorboard"), purge_step=step + 1 if step else None)
        self._writer.add_text("config", f"```toml\n{run.config.to_toml()}\n```", step)

    def on_log(self, records: Sequence[dict[str, Any]]) -> None:
        """Adds the metrics of steps under ``train/``."""
        for record in records:
            self._add("train", record)

    def on_evaluate(self, step: int, record: dict[str, Any]) -> None:
        """Adds the scores of an evaluation under ``eval/``."""
        self._add("eval", {**record, "step": step})

    def close(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, group: str, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if isinstance(value, (int, float)) and name != "step" and math.isfinite(value):
                self._writer.add_scalar(f"{group}/{name}", value, record["step"])
