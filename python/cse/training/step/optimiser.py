"""The optimiser of a training run, and its learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn


def unique_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Returns the parameters of all modules without repetition; a loss term may contain the encoder as a submodule."""
    return list({id(parameter): parameter for module in modules for parameter in module.parameters()}.values())


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    lr: float  # the peak rate, after the warm-up
    name: str  # linear and cosine decrease the rate to 0 at the end of the run; constant does not
    warmup: float = 0.0  # fraction of the steps during which the rate rises to the peak

    def at(self, step: int, steps: int) -> float:
        """Returns the learning rate of a step, numbered from 0, of a run of ``steps`` steps."""
        warm = round(self.warmup * steps)
        done = (step - warm) / max(steps - warm, 1)
        rate = self.lr
        if step < warm:
            rate = self.lr * (step + 1) / (warm + 1)
        elif self.name == "linear":
            rate = self.lr * (1 - done)
        elif self.name == "cosine":
            rate = self.lr * (1 + math.cos(math.pi * done)) / 2
        return float(np.float32(rate))  # the type in which a recorded step reads it


def build_optimizer(modules: Sequence[torch.nn.Module], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Returns AdamW with the defaults of the Hugging Face ``Trainer``: betas (0.9, 0.999), eps 1e-8."""
    parameters = unique_parameters(modules)
    if any(getattr(module, "adapters", None) is not None for module in modules):
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
