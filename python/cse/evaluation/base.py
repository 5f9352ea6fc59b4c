"""The interface of evaluations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Encodes", "Evaluation", "NoOptions", "Report"]

Progress = Callable[[int], None]


class Encodes(Protocol):
    """An encoder: ``encode`` returns embeddings ``(n, D)``."""

    def encode(
        self, texts: Sequence[str], *, batch_size: int = ..., progress: Progress | None = ...
    ) -> npt.NDArray[np.float32]:
        """Embeddings of the texts; ``progress`` is called with the number of texts done since the last call."""
        ...


@dataclass(frozen=True)
class NoOptions:
    """Options of an evaluation that has none."""


@dataclass(frozen=True)
class Report:
    """The result of an evaluation."""

    rows: list[dict[str, Any]]
    """The table: one record per task, the first value its name."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Figures over all tasks."""
    notes: list[str] = field(default_factory=list)
    """Sentences that the reader should know."""


class Evaluation(ABC):
    """An evaluation of an encoder.

    Subclasses define ``Options``, a frozen dataclass filled from ``--set NAME.OPTION=VALUE``, ``sentences`` and
    ``__call__``. The constructor reads and checks the data, so that a fault is found before the model is loaded.

    Args:
        options: An instance of ``Options``.
        data: The value of ``--data``, a file or a folder; None if it was not given.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any, data: str | None) -> None:
        self.options, self.data = options, data

    @abstractmethod
    def sentences(self) -> int:
        """How many texts will be encoded."""

    @abstractmethod
    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        """Evaluates the encoder."""
