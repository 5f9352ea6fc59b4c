"""Evaluation of embeddings that are truncated to their first dimensions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .base import Encodes, Evaluation, Progress, Report, Sample


class Replayed:
    """Wraps an encoder for several passes of an evaluation, each with a different number of dimensions.

    The first pass encodes texts and stores all dimensions of their vectors; later passes read the stored vectors.

    Args:
        encoder: A ``cse.Encoder``.
        folder: Folder for the stored vectors.
    """

    def __init__(self, encoder: Any, folder: Path) -> None:
        self.encoder, self.folder = encoder, folder
        self.similarity_name = encoder.similarity_name
        self.calls: list[int] = []
        self.place, self.dims = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    @property
    def embedding_dim(self) -> int:
        """The number of dimensions that the pass keeps."""
        return self.dims

    def begin(self, dims: int) -> None:
        """Begins a pass that keeps the first ``dims`` dimensions."""
        self.place, self.dims = 0, dims

    def encode(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings from ``Encoder.encode``, truncated to their first dimensions."""
        return self._vectors(self.encoder.encode, texts, settings)

    def encode_query(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings from ``Encoder.encode_query``, truncated to their first dimensions."""
        return self._vectors(self.encoder.encode_query, texts, settings)

    def encode_document(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings from ``Encoder.encode_document``, truncated to their first dimensions."""
        return self._vectors(self.encoder.encode_document, texts, settings)

    def _vectors(
        self, encode: Callable[..., Any], texts: Sequence[str], settings: dict[str, Any]
    ) -> npt.NDArray[np.float32]:
        number, self.place = self.place, self.place + 1
        file, key = self.folder / f"{number}.npy", hash((encode.__name__, *texts))
        if number < len(self.calls) and self.calls[number] == key:
            vectors = np.load(file, mmap_mode="r")
            if progress := settings.get("progress"):
                progress(len(texts))
        else:
            vectors = encode(texts, **settings)
            np.save(file, vectors)
            self.calls[number:] = [key]
        found: npt.NDArray[np.float32] = self.encoder.shortened(np.asarray(vectors), self.dims)
        return found


def evaluate_dims(
    evaluation: Evaluation,
    encoder: Any,
    dims: Sequence[int],
    progress: Progress | None = None,
    wrap: Callable[[Any], Encodes] | None = None,
) -> Report:
    """Evaluates an encoder once for each number of dimensions to which its embeddings are truncated.

    Texts are encoded once, and their vectors are kept in temporary files.

    Args:
        evaluation: The evaluation.
        encoder: A ``cse.Encoder`` that keeps all dimensions.
        dims: Numbers of dimensions to keep.
        progress: Called with the units of work done since its last call; their total is
            ``len(dims) * evaluation.work()``.
        wrap: Returns what is evaluated, given an encoder of truncated embeddings. None: that encoder.

    Returns:
        A report with one row for each combination of task and number of dimensions. The keys of its summary and the
        task names of its samples include the number of dimensions.
    """
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    notes: dict[str, None] = {}
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(prefix="cse-dims-") as folder:
        replayed = Replayed(encoder, Path(folder))
        for size in dims:
            replayed.begin(size)
            report = evaluation(wrap(replayed) if wrap else replayed, progress)
            rows += [{"task": row["task"], "dims": size, **row} for row in report.rows]
            summary |= {f"{key} ({size} dimensions)": value for key, value in report.summary.items()}
            notes |= dict.fromkeys(report.notes)
            samples += [replace(each, task=f"{each.task} ({size} dimensions)") for each in report.samples]
    return Report(sorted(rows, key=lambda row: _place(rows, row["task"])), summary, list(notes), samples)


def _place(rows: Sequence[dict[str, Any]], task: str) -> int:
    """Returns the position of the first row of a task, by which the rows are sorted."""
    return next(number for number, row in enumerate(rows) if row["task"] == task)
