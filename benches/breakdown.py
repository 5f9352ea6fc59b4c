"""Uses PyTorch's profiler to measure how the time of a training step on the CPU is divided among operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile, record_function

__all__ = ["breakdown"]

# The parts of a step, and the names of the profiler events that belong to each. Any other event forms a separate part.
PARTS = {
    "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
    "dropout masks": ("dropout masks",),
    "softmax": ("aten::_softmax", "aten::_softmax_backward_data", "aten::_log_softmax"),
    "GELU": ("aten::gelu", "aten::gelu_backward"),
    "layer norm": ("aten::native_layer_norm", "aten::native_layer_norm_backward"),
    "embeddings": ("aten::embedding_dense_backward", "aten::index_select"),
    "optimizer and norm": ("aten::_fused_adamw_", "aten::_foreach_norm", "aten::_foreach_mul_"),
    "Python between operations": ("step",),
}


def breakdown(run: Callable[[Any], object]) -> dict[str, float]:
    """Returns, for each part of a training step, the fraction (0 to 1) of the CPU time spent in it, largest first.

    Args:
        run: A function that trains with cse. Its argument is a profiler, which ``run`` must start after some
            step and stop after a later one.
    """
    from cse.encoder.fast import dropout
    from cse.training import loop
    from cse.training.step import step

    def recorded(function: Any, name: str) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            with record_function(name):
                return function(*arguments, **keywords)

        return call

    profiler = profile(activities=[ProfilerActivity.CPU])
    with (
        patch.object(dropout, "dropout_mask", recorded(dropout.dropout_mask, "dropout masks")),
        patch.object(loop, "training_step", recorded(step.training_step, "step")),
    ):
        run(profiler)
    part_of = {operation: part for part, operations in PARTS.items() for operation in operations}
    spent: dict[str, float] = {}
    for event in profiler.key_averages():
        part = part_of.get(event.key, event.key.removeprefix("aten::"))
        spent[part] = spent.get(part, 0.0) + event.self_cpu_time_total
    total = sum(spent.values())
    return {part: time / total for part, time in sorted(spent.items(), key=lambda item: -item[1])}
