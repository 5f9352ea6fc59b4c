"""The optimisation of a run: sizes of batches and steps, AdamW and its learning rate, precision and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...errors import InputError

if TYPE_CHECKING:
    import torch

    from ..batches.batches import Batches
    from ..settings.config import ResolvedConfig
    from ..settings.declared import Settings
    from ..step.encode import Forward
    from .output import Machine


def check_sizes(settings: Settings, batches: Batches, ranks: int) -> None:
    """Raises ``InputError`` if there are too few sentences for a step, or more ranks than rows in a batch."""
    rows = len(batches.rows)
    if rows < 2:
        raise InputError(
            f"CORPUS: has {rows} sentence{'s' * (rows != 1)}; contrastive learning needs at least two, and preferably "
            "thousands"
        )
    if batches.size > rows:
        raise InputError(f"--batch-size: {batches.size} is more than the {rows} training sentences; lower it")
    if not len(batches):
        raise InputError(f"--accumulate: {settings.accumulate} batches are more than the run has; lower it")
    if batches.size < ranks:
        raise InputError(f"--batch-size: {batches.size} is less than the {ranks} processes; raise it")


def learning_rate(settings: ResolvedConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step.

    After the warm-up, the schedules ``linear`` and ``cosine`` decrease the rate to 0 at the end of the run.

    Args:
        settings: ``lr`` is the peak rate; ``warmup`` is the fraction of the steps during which the rate rises to it.
        step: Number of the step, from 0.
        steps: Number of steps of the run.
    """
    warm = round(settings.warmup * steps)
    if step < warm:
        return settings.lr * (step + 1) / (warm + 1)
    done = (step - warm) / max(steps - warm, 1)
    if settings.lr_scheduler == "linear":
        return settings.lr * (1 - done)
    if settings.lr_scheduler == "cosine":
        return settings.lr * (1 + math.cos(math.pi * done)) / 2
    return settings.lr


def build_optimizer(settings: ResolvedConfig, modules: Sequence[torch.nn.Module]) -> torch.optim.Optimizer:
    """Returns AdamW with the defaults of the Hugging Face ``Trainer``: betas (0.9, 0.999), eps 1e-8.

    Weight decay is not applied to parameters of fewer than two dimensions (biases and normalisation weights). If the
    encoder has adapters (LoRA), only the parameters that require gradients are included.
    """
    import torch

    from ..step.state import unique_parameters

    parameters = unique_parameters(modules)
    if any(getattr(module, "adapters", None) is not None for module in modules):
        parameters = [each for each in parameters if each.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": settings.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)


def forward_of(settings: Settings, place: Settings, machine: Machine) -> Forward:
    """Returns how the rows of a batch are encoded."""
    from ..step.encode import Forward

    return Forward(machine.device, machine.precision, settings.chunk_size, settings.compile, place.seed)


def describe_steps(settings: ResolvedConfig, batches: Batches) -> dict[str, str]:
    """Returns the number and size of the steps, and the learning rate."""
    times = f" x {settings.accumulate}" if settings.accumulate > 1 else ""
    text = f"{len(batches):,} of {batches.size}{times} sentences, lr {settings.lr:g} {settings.lr_scheduler}"
    if settings.merge_with_base:
        text += f", averaged with the base model (weight {settings.merge_with_base:.0%})"
    return {"steps": text}
