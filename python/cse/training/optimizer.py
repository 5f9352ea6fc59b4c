"""The optimizer: AdamW, which parameters decay, and the learning rate of each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from .config import ResolvedConfig

__all__ = ["build_optimizer", "learning_rate", "unique_parameters"]


def learning_rate(config: ResolvedConfig, step: int, steps: int) -> float:
    """Returns the learning rate of a step, counted from 0.

    It rises linearly over the first ``warmup`` share of the steps, then decreases to 0 (``linear``, ``cosine``) or
    stays.
    """
    warm = round(config.warmup * steps)
    if step < warm:
        return config.lr * (step + 1) / (warm + 1)
    done = (step - warm) / max(steps - warm, 1)
    if config.lr_scheduler == "linear":
        return config.lr * (1 - done)
    if config.lr_scheduler == "cosine":
        return config.lr * (1 + math.cos(math.pi * done)) / 2
    return config.lr


def build_optimizer(modules: Sequence[torch.nn.Module], config: ResolvedConfig) -> torch.optim.Optimizer:
    """Returns AdamW with the defaults of the Hugging Face ``Trainer``: betas (0.9, 0.999), eps 1e-8.

    Weight decay is not applied to parameters of fewer than two dimensions (biases and normalisation weights).
    """
    parameters = unique_parameters(modules)
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.999), eps=1e-8, fused=True)


def unique_parameters(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Parameter]:
    """All parameters, each once: a loss term may hold the encoder as a submodule."""
    return list({id(each): each for module in modules for each in module.parameters()}.values())
