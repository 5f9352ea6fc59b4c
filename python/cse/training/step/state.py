"""The modules of a training run, and its state, which checkpoints store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ...encoder.trained import SentenceEncoder
from ...hooks.base import EncoderMethod, FeatureMethod, Hook
from ...losses.base import LossTerm
from ..batches.batches import Batch
from ..selection import Selector
from ..watching import SaturationCheck
from .optimiser import unique_parameters


@dataclass
class Modules:
    """The modules of a run: its encoders, and its methods by name."""

    encoder: SentenceEncoder
    second: SentenceEncoder | None
    """The separate encoder of the positives, if any (``--positive-encoder``); saved only in checkpoints."""
    terms: dict[str, LossTerm]
    features: dict[str, FeatureMethod]
    hooks: dict[str, Hook]
    methods: dict[str, EncoderMethod]

    @property
    def by_name(self) -> dict[str, Any]:
        """All methods by name."""
        return {**self.terms, **self.features, **self.hooks, **self.methods}

    def modules(self) -> dict[str, nn.Module]:
        """Returns all modules of the run by name."""
        modules: dict[str, nn.Module] = {"encoder": self.encoder}
        if self.second is not None:
            modules["second"] = self.second
        for kind in ("terms", "features", "hooks", "methods"):
            modules |= {f"{kind}.{name}": method for name, method in getattr(self, kind).items()}
        return modules


@dataclass
class TrainState(Modules):
    """The mutable state of a training run."""

    optimizer: torch.optim.Optimizer
    selector: Selector
    saturation: SaturationCheck
    steps: int = 0  # number of steps of the run
    step: int = 0  # number of steps done
    sentences: int = 0
    seconds: float = 0.0  # training time without evaluation
    viewed: Counter[str] = field(default_factory=Counter)
    """For each view name, the number of steps whose batches contained this view."""

    @cached_property
    def trained(self) -> list[nn.Parameter]:
        """The parameters that require gradients at the first step, for the whole run."""
        return [p for p in unique_parameters(self.modules().values()) if p.requires_grad]

    @cached_property
    def after_step(self) -> list[Callable[[], None]]:
        """The functions ``after_step`` of the methods that have one, which are called after each step."""
        found: list[Any] = [getattr(module, "after_step", None) for module in self.modules().values()]
        return [function for function in found if function is not None]

    @property
    def keeps_more(self) -> bool:
        """Whether methods change more in a step than the parameters, which the optimizer skips: buffers or averages."""
        methods = [
            method for table in (self.terms, self.features, self.hooks, self.methods) for method in table.values()
        ]
        buffers = (buffer for method in methods for buffer in method.buffers())
        return bool(self.after_step) or any(buffer.is_floating_point() for buffer in buffers)

    def weights(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers of all modules by name; shared tensors are included once.

        If an encoder has adapters, only its weights that require gradients are included.
        """
        weights: dict[str, Tensor] = {}
        seen: set[int] = set()
        for prefix, module in self.modules().items():
            adapted = getattr(module, "adapters", None) is not None
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if adapted and not tensor.requires_grad:
                    seen.add(id(tensor))
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    weights[f"{prefix}.{name}"] = tensor
        return weights

    def train(self) -> None:
        """Puts all modules into training mode."""
        for module in self.modules().values():
            module.train()

    def counters(self) -> dict[str, Any]:
        """Returns the values that ``count`` changes, by name."""
        viewed = self.viewed.copy()
        return {"step": self.step, "sentences": self.sentences, "seconds": self.seconds, "viewed": viewed}

    def count(self, batches: Sequence[Batch], seconds: float) -> None:
        """Updates the counters after a step; ``seconds`` is the training time so far."""
        self.step += 1
        self.sentences += sum(len(batch.rows) for batch in batches)
        self.seconds = seconds
        self.viewed.update(batches[0].views)

    def record(self, batches: Sequence[Batch], rate: float, metrics: dict[str, Any]) -> dict[str, Any]:
        """Returns the log record of a step; its metrics remain tensors on the device until the log is written."""
        masked: Counter[str] = Counter()
        for batch in batches:
            masked.update({f"masked/{view}": int((~mask).sum()) for view, mask in batch.masks.items()})
            masked.update({f"unchanged/{name}": count for name, count in batch.unchanged.items() if count})
        return {
            "step": self.step,
            "epoch": batches[0].epoch,
            "lr": rate,
            **metrics,
            **masked,
            "synthetic_steps": self.viewed["synthetic"],
            "sentences_per_second": round(self.sentences / self.seconds, 2),
        }
