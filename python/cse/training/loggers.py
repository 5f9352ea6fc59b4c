"""Loggers: callbacks that ``--logger`` selects by name. This module does not import torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..io import LineFile, dumps, parse_json, write_text
from ..registry import Registry
from .callbacks import Callback

if TYPE_CHECKING:
    from .run import Run

LOGGERS: Registry[type[Callback]] = Registry(
    "logger",
    "cse.loggers",
    {
        "jsonl": "cse.training.loggers:JsonLines",
        "tensorboard": "cse.training.trackers:TensorBoard",
        "wandb": "cse.training.trackers:Wandb",
    },
)
"""Callback classes by name, for ``cse train --logger NAME``; they take no arguments. ``jsonl`` is always used."""


def loggers(names: Sequence[str]) -> list[Callback]:
    """Creates the logger ``jsonl`` and the loggers with these names."""
    return [LOGGERS.get(name, "--logger")() for name in dict.fromkeys(["jsonl", *names])]


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
