"""Counters and log records of training steps, and conversion of errors to messages that propose a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ..errors import RunError, sentence
from ..models.device import is_out_of_memory
from .batches import Batch
from .metrics import Clock
from .state import TrainState

__all__ = ["count", "failures", "log_record"]


@contextmanager
def failures(step: int, batch_size: int, max_length: int, chunk_size: int | None) -> Iterator[None]:
    """Context manager that converts out-of-memory errors, and write errors after the first step, to ``RunError``.

    Args:
        step: Number of steps done.
        batch_size: Sentences per batch, for the message.
        max_length: Maximum number of tokens in a sentence, for the message.
        chunk_size: Sentences per chunk; None if batches are not divided into chunks. The message proposes half of
            ``chunk_size`` or, without one, half of ``batch_size``.
    """
    try:
        yield
    except OSError as error:
        if step == 0:
            raise
        raise RunError(f"{sentence(error)}; the files of earlier steps were kept") from None
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            now = chunk_size or batch_size
            raise RunError(
                f"out of memory at step {step + 1} with batches of {batch_size} sentences of up to "
                f"{max_length} tokens; set --chunk-size {max(1, now // 2)}, which changes the result only "
                f"through dropout, or lower --batch-size or --max-length"
            ) from None
        raise


def count(state: TrainState, batches: Sequence[Batch], clock: Clock) -> None:
    """Updates the counters of the state after a step."""
    state.step += 1
    state.sentences += sum(len(batch.rows) for batch in batches)
    state.seconds = clock.seconds()
    state.viewed.update(batches[0].views)


def log_record(state: TrainState, batches: Sequence[Batch], rate: float, metrics: dict[str, Any]) -> dict[str, Any]:
    """Returns the log record of a step; its metrics remain tensors on the device until the log is written."""
    masked: Counter[str] = Counter()
    for batch in batches:
        masked.update({f"masked/{view}": int((~mask).sum()) for view, mask in batch.masks.items()})
        masked.update({f"unchanged/{name}": count for name, count in batch.unchanged.items() if count})
        if batch.duplicates is not None:
            masked["duplicates"] += int(batch.duplicates.any(1).sum())
    return {
        "step": state.step,
        "epoch": batches[0].epoch,
        "lr": rate,
        **metrics,
        **masked,
        "synthetic_steps": state.viewed["synthetic"],
        "sentences_per_second": round(state.sentences / state.seconds, 2),
    }
