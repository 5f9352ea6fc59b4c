"""Base class for evaluations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import InputError

__all__ = ["Encodes", "Evaluation", "NoOptions", "Report", "Sample", "counted", "embed", "read_lines"]

Progress = Callable[[int], None]


class Encodes(Protocol):
    """Protocol of encoders that can be evaluated."""

    def encode(
        self, texts: Sequence[str], *, batch_size: int = ..., progress: Progress | None = ...
    ) -> npt.NDArray[np.float32]:
        """Returns embeddings ``(n, D)`` float32; ``progress`` gets the number of texts encoded since its last call."""
        ...


def counted(total: int, progress: Callable[[int, int], None] | None) -> Progress:
    """Returns a function that adds its argument to a count and then calls ``progress(count, total)``.

    If ``progress`` is None, the returned function only counts.
    """
    done = 0

    def advance(more: int) -> None:
        nonlocal done
        done += more
        if progress is not None:
            progress(done, total)

    return advance


def embed(
    encoder: Encodes, columns: Sequence[Sequence[str]], progress: Progress | None = None
) -> list[npt.NDArray[np.float32]]:
    """Encodes several lists of texts; each distinct text is encoded once.

    Args:
        encoder: The encoder.
        columns: Lists of texts.
        progress: Called with the number of texts encoded since its last call.

    Returns:
        The embeddings of each list, ``(n, D)`` float32.
    """
    row: dict[str, int] = {}
    for column in columns:
        for text in column:
            row.setdefault(text, len(row))
    vectors = encoder.encode(list(row), progress=progress)
    return [vectors[[row[text] for text in column]] for column in columns]


def read_lines(path: Path) -> list[tuple[int, str]]:
    """Returns the non-blank lines of a UTF-8 file, with their line numbers from 1."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not valid UTF-8 (byte offset {error.start})") from None
    return [(number, line.rstrip("\r")) for number, line in enumerate(lines, 1) if line.strip()]


@dataclass(frozen=True)
class NoOptions:
    """An empty set of options, for evaluations that have none."""


@dataclass(frozen=True)
class Sample:
    """Results on the individual examples of a task, from which ``cse compare`` computes confidence intervals."""

    task: str
    """Name of the task in the report; some evaluations append the metric, as in ``FILE: mrr``."""
    values: npt.NDArray[np.float64]
    """``(n,)`` score of each example, or its cosine if ``gold`` is given."""
    gold: npt.NDArray[np.float64] | None = None
    """``(n,)`` gold scores, for a task scored by Spearman's correlation. None: the score is the mean of ``values``."""
    sentences: tuple[Sequence[str], Sequence[str]] | None = None
    """The two sentences of each example; examples that share a sentence are resampled together.

    None: the examples are independent.
    """


@dataclass(frozen=True)
class Report:
    """The result of an evaluation."""

    rows: list[dict[str, Any]]
    """One record per task; its first value is the name of the task."""
    summary: dict[str, Any] = field(default_factory=dict)
    """Scores over all tasks."""
    notes: list[str] = field(default_factory=list)
    """Remarks on how to interpret the scores."""
    samples: list[Sample] = field(default_factory=list)
    """Results on individual examples, one ``Sample`` per task; empty if there are none, as in ``geometry``."""


class Evaluation(ABC):
    """Base class for evaluations of an encoder.

    Subclasses define ``work``, ``__call__``, ``summary`` (one line for ``cse methods``) and, if they have options,
    ``Options``: a frozen dataclass filled from ``--set NAME.OPTION=VALUE``. The constructor reads and
    checks the data, so that errors are raised before the model is loaded.

    Args:
        options: An instance of ``Options``.
        data: Value of ``--data``, a file or a folder; None if it was not given.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any, data: str | None) -> None:
        self.options, self.data = options, data

    @abstractmethod
    def work(self) -> int:
        """Returns the number of units of work: usually one per encoded text, and several per trained classifier."""

    @abstractmethod
    def __call__(self, encoder: Encodes, progress: Progress | None = None) -> Report:
        """Evaluates an encoder; ``progress`` is called with the units of work done since its last call."""
