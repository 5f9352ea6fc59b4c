"""The AdamW optimizer, with weight decay by parameter group, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

__all__ = ["build_optimizer", "learning_rate", "unique_parameters"]


def learning_rate(step: int, steps: int, lr: float, scheduler: str, warmup: float = 0.0) -> float:
    """Returns the learning rate of a step.

    Args:
        step: Number of the step, from 0.
        steps: Number of steps of the run.
        lr: Peak learning rate.
        scheduler: ``linear`` or ``cosine``, which decrease the rate to 0 after the warm-up; or ``constant``.
        warmup: Fraction of the steps, at the start of the run, during which the rate rises linearly to ``lr``.
    """
    warm = round(warmup * steps)
    if step < warm:
        return lr * (step + 1) / (warm + 1)
    done = (step - warm) / max(steps - warm, 1)
    if scheduler == "linear":
        return lr * (1 - done)
    if scheduler == "cosine":
        return lr * (1 + math.cos(math.pi * done)) / 2
    return lr


def build_optimizer(modules: Sequence[torch.nn.Module], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Returns AdamW with the defaults of the Hugging Face ``Trainer``: betas (0.9, 0.999), eps 1e-8.

    Weight decay is not applied to parameters of fewer than two dimensions (biases and normalisation weights). If the
    encoder has adapters (LoRA), only the parameters that require gradients are included.
    """
    parameters = unique_parameters(modules)
    if any(getattr(module, "adapters", None) is not None for module in modules):
        parameters = [each for each in parameters if each.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=True)


def unique_parameters(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
    """Returns the parameters of all modules without repetition; a loss term may contain the encoder as a submodule."""
    return list({id(each): each for module in modules for each in module.parameters()}.values())
