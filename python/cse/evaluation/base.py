"""Base class of evaluations."""

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
    """Protocol of encoders that can be evaluated."""

    def encode(
        self, texts: Sequence[str], *, batch_size: int = ..., progress: Progress | None = ...
    ) -> npt.NDArray[np.float32]:
        """Returns embeddings ``(n, D)`` float32; calls ``progress`` with the number of texts since its last call."""
        ...


@dataclass(frozen=True)
class NoOptions:
    """Options of an evaluation without options."""


@dataclass(frozen=True)
class Report:
    """The result of an evaluation."""

    rows: list[dict[str, Any]]
    """One record per task; its first value is the name of the task."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Scores over all tasks."""
    notes: list[str] = field(default_factory=list)
    """Remarks on the interpretation of the scores."""


class Evaluation(ABC):
    """Base class of evaluations of an encoder.

    Subclasses define ``sentences``, ``__call__`` and, if they have options, ``Options``: a frozen dataclass filled from
    ``--set NAME.OPTION=VALUE``. The constructor reads and checks the data, so that errors are raised before the model
    is loaded.

    Args:
        options: An instance of ``Options``.
        data: Value of ``--data``, a file or a folder; None if it was not given.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any, data: str | None) -> None:
        self.options, self.data = options, data

    @abstractmethod
    def sentences(self) -> int:
        """Returns the number of texts that are encoded."""

    @abstractmethod
    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        """Evaluates an encoder; ``progress`` is called with the number of texts encoded since its last call."""
