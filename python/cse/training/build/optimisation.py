"""The optimiser of a run, AdamW, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..step.state import unique_parameters


@dataclass(frozen=True)
class Schedule:
    """The learning rate of each step."""

    lr: float
    """The peak rate, after the warm-up."""
    name: str
    """``linear`` and ``cosine`` decrease the rate to 0 at the end of the run; ``constant`` does not."""
    warmup: float = 0.0
    """Fraction of the steps during which the rate rises to the peak."""

    def at(self, step: int, steps: int) -> float:
        """Returns the learning rate of a step, numbered from 0, of a run of ``steps`` steps.

        It is rounded to float32, in which a recorded step reads it on a GPU.
        """
        warm = round(self.warmup * steps)
        done = (step - warm) / max(steps - warm, 1)
        rate = self.lr
        if step < warm:
            rate = self.lr * (step + 1) / (warm + 1)
        elif self.name == "linear":
            rate = self.lr * (1 - done)
        elif self.name == "cosine":
            rate = self.lr * (1 + math.cos(math.pi * done)) / 2
        return float(np.float32(rate))


def build_optimizer(modules: Sequence[torch.nn.Module], lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Returns AdamW with the defaults of the Hugging Face ``Trainer``: betas (0.9, 0.999), eps 1e-8.

    Weight decay is not applied to parameters of fewer than two dimensions (biases and normalisation weights). If the
    encoder has adapters (LoRA), only the parameters that require gradients are included.
    """
    parameters = unique_parameters(modules)
    if any(getattr(module, "adapters", None) is not None for module in modules):
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999), eps=1e-8, fused=True)
