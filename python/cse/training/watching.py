"""What is watched while a model is trained: metrics and time of the steps, and signs that the run fails."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..encoder.device import is_out_of_memory
from ..errors import RunError, sentence
from .settings.resolve import Resolved


@contextmanager
def failures(step: int, settings: Resolved) -> Iterator[None]:
    """Context manager that converts out-of-memory errors, and write errors after the first step, to ``RunError``."""
    size, chunk = settings.optimisation.batch_size, settings.optimisation.chunk_size
    try:
        yield
    except OSError as error:
        if step == 0:
            raise
        raise RunError(f"{sentence(error)}; the files of earlier steps were kept") from None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise RunError(
            f"out of memory at step {step + 1} with batches of {size} sentences of up to "
            f"{settings.data.max_length} tokens; set --chunk-size {max(1, (chunk or size) // 2)}, "
            "which changes the result only through dropout, or lower --batch-size or --max-length"
        ) from None


class MetricBuffer:
    """A buffer of the metrics of steps, which remain on the device until all are copied to the host in one transfer."""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []

    def append(self, record: dict[str, Any], rows: Sequence[Any], before: Mapping[str, Any]) -> None:
        """Adds the record of a step, whose scalar tensors remain on the device."""
        self._records.append({**record, "rows": rows, "before": before})

    def read(self) -> list[dict[str, Any]]:
        """Returns the records since the last call, up to the first step whose loss or gradient was not finite.

        Only the record of that step has ``finite``, ``rows`` and ``before``.
        """
        records, self._records = self._records, []
        keys = [(i, key) for i, record in enumerate(records) for key, value in record.items() if torch.is_tensor(value)]
        if keys:
            values = torch.stack([records[i][key].float() for i, key in keys]).tolist()
            for (i, key), value in zip(keys, values, strict=True):
                records[i][key] = value
        for place, record in enumerate(records):
            if not record["finite"]:
                return records[: place + 1]
            for name in ("finite", "rows", "before"):
                del record[name]
        return records


SLOWER = 3.0
WINDOW = 10


class SlowSteps:
    """Notices that steps take three times as long as the first ones, as on processors that other programs use, too."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._first = 0.0

    def update(self, seconds: float) -> str | None:
        """Adds the duration of a step; returns a note at the first slow window, else None."""
        if math.isinf(self._first):
            return None
        self._times.append(seconds)
        if len(self._times) < WINDOW + (not self._first):
            return None
        median = statistics.median(self._times[-WINDOW:])
        self._times.clear()
        if not self._first:
            self._first = median
        elif median > SLOWER * self._first:
            first, self._first = self._first, math.inf
            return (
                f"a step now takes {median:.2f} s, and took {first:.2f} s at first; if other programs use the "
                "processor, a lower --threads may be faster"
            )
        return None


FIRST_STEPS = 10
SOLVED = 0.99


class SaturationCheck:
    """Checks the mean probability that the softmax of the loss assigns to the positive in the first 10 steps.

    If the mean is above 0.99, the gradients are mostly noise, which AdamW scales up to updates of the usual size. The
    weights then drift, and the scores fall. This happens when a model that was already trained contrastively is trained
    with dropout positives at a low temperature.
    """

    def __init__(self, positive: str, temperature: float) -> None:
        self.positive, self.temperature = positive, temperature
        self.note: str | None = None
        self.first: list[float] = []  # the probabilities in the first steps; checkpoints store them and note

    def update(self, records: list[dict[str, Any]]) -> str | None:
        """Adds log records; returns the note when the first 10 steps show that the task is solved, else None."""
        if self.note is not None or len(self.first) >= FIRST_STEPS:
            return None
        self.first += [record["p_pos"] for record in records if math.isfinite(record.get("p_pos", math.nan))]
        first = self.first[:FIRST_STEPS]
        if len(first) < FIRST_STEPS:
            return None
        mean = sum(first) / len(first)
        if mean <= SOLVED:
            return None
        remedy = "raise --temperature" if self.positive == "spans" else "use --positive spans or raise --temperature"
        self.note = (
            f"The task is solved from the start: in the first {FIRST_STEPS} steps the positive has a probability of "
            f"{mean:.4f} among the candidates (--positive {self.positive}, temperature {self.temperature:g}), so the "
            f"model learns little and may drift; {remedy}."
        )
        return self.note
