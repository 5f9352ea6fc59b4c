"""The mutable state of a training run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from ..augment.base import FeatureAugmentation
from ..losses.base import LossTerm
from ..models.encoder import SentenceEncoder
from .saturation import SaturationCheck
from .selection import Selector

__all__ = ["TrainState"]


@dataclass
class TrainState:
    """The mutable state of a training run.

    Batches, learning rate and augmentations are functions of ``step``. The only state outside this class is that of
    PyTorch's generators, which dropout uses.
    """

    encoder: SentenceEncoder
    terms: dict[str, LossTerm]
    features: list[FeatureAugmentation]
    optimizer: torch.optim.Optimizer
    selector: Selector
    saturation: SaturationCheck
    step: int = 0
    """Number of steps done."""
    sentences: int = 0
    """Number of sentences processed."""
    seconds: float = 0.0
    """Training time without evaluation."""
    viewed: Counter[str] = field(default_factory=Counter)
    """Number of steps with a view, by view name."""
