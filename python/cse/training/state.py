"""The state of a training run, which checkpoints store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..features.base import EncoderMethod, FeatureMethod, Hook
from ..losses.base import LossTerm
from ..models.encoder import SentenceEncoder
from .saturation import SaturationCheck
from .selection import Selector

__all__ = ["TrainState"]


@dataclass
class TrainState:
    """The mutable state of a training run.

    Batches, learning rate and augmentations are functions of the configuration and ``step``. The only other state is
    that of PyTorch's random number generators, which dropout uses.
    """

    encoder: SentenceEncoder
    terms: dict[str, LossTerm]
    features: dict[str, FeatureMethod]
    optimizer: torch.optim.Optimizer
    selector: Selector
    saturation: SaturationCheck
    second: SentenceEncoder | None = None
    """The separate encoder of the positives, if any (``--positive-encoder``); saved only in checkpoints."""
    hooks: dict[str, Hook] = field(default_factory=dict)
    methods: dict[str, EncoderMethod] = field(default_factory=dict)
    steps: int = 0
    """Number of steps of the run."""
    step: int = 0
    """Number of steps done."""
    sentences: int = 0
    """Number of sentences processed."""
    seconds: float = 0.0
    """Training time without evaluation."""
    viewed: Counter[str] = field(default_factory=Counter)
    """For each view name, the number of steps whose batches contained this view."""

    def modules(self) -> dict[str, nn.Module]:
        """Returns all modules of the run by name: encoders, loss terms, feature methods, hooks and encoder methods."""
        found: dict[str, nn.Module] = {"encoder": self.encoder}
        if self.second is not None:
            found["second"] = self.second
        for kind, methods in (
            ("terms", self.terms),
            ("features", self.features),
            ("hooks", self.hooks),
            ("methods", self.methods),
        ):
            found |= {f"{kind}.{name}": method for name, method in methods.items()}
        return found

    def weights(self) -> dict[str, Tensor]:
        """Returns the parameters and buffers of all modules by name; shared tensors are included once.

        The weights of ``Frozen`` models are left out. If an encoder has adapters, only its weights that require
        gradients are included.
        """
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for prefix, module in self.modules().items():
            adapted = getattr(module, "adapters", None) is not None
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                if adapted and not tensor.requires_grad:
                    seen.add(id(tensor))
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    found[f"{prefix}.{name}"] = tensor
        return found

    @contextmanager
    def for_evaluation(self) -> Iterator[None]:
        """Context manager in which the encoder has the weights that the encoder methods set for evaluation."""
        with ExitStack() as stack:
            for method in self.methods.values():
                stack.enter_context(method.for_evaluation())
            yield

    def train(self) -> None:
        """Puts all modules into training mode."""
        for module in self.modules().values():
            module.train()
