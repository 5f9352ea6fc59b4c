"""The modules, optimiser and learning rate of a training run, and its state, which checkpoints store."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...augment.base import View
from ...encoder.acceleration import CastTogether, can_pack, mask_always, transformers_in, use_fast_dropout
from ...encoder.device import compile_backbone
from ...encoder.trained import SentenceEncoder
from ...features.base import EncoderMethod, FeatureMethod, Hook
from ...losses.base import LossTerm
from ..batches.prepared import Batch
from ..selection import Selector
from ..watching import SaturationCheck


def unique_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Returns the parameters of all modules without repetition; a loss term may contain the encoder as a submodule."""
    return list({id(parameter): parameter for module in modules for parameter in module.parameters()}.values())


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


def accelerate(modules: Modules, device: str, *, compiled: bool) -> None:
    """Moves the modules to the device and replaces slow parts of the backbones.

    On a GPU, the attention always uses the mask, and transformers that are not compiled cast their weights together. On
    the CPU, unless ``compiled``, dropout is replaced, and models that can pack rows encode them without padding.
    """
    for module in modules.modules().values():
        module.to(device)
    if device != "cpu":
        for backbone in dict.fromkeys(transformers_in(modules.modules().values())):
            mask_always(backbone)
            if not (compiled and backbone is modules.encoder.backbone):
                CastTogether(backbone)
    elif not compiled:
        for encoder in filter(None, (modules.encoder, modules.second)):
            use_fast_dropout(encoder.backbone)
            encoder.packed = can_pack(encoder.backbone)
    if compiled:
        compile_backbone(modules.encoder.backbone, device)


def has_no_dropout(view: View, encoder: SentenceEncoder) -> bool:
    """Returns whether an encoder gives a view the same embeddings each time."""
    if view.hook is not None or view.dropout is not None:
        return view.hook is None and view.dropout == 0
    return not any(getattr(module, "p", 0) for module in encoder.backbone.modules())
