"""The state of a run: what a resumed run needs to continue as if it had not stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from ..augment.base import FeatureAugmentation
from ..losses.base import LossTerm
from ..models.encoder import SentenceEncoder
from .selection import Selector

__all__ = ["TrainState"]


@dataclass
class TrainState:
    """Everything that changes while a run trains.

    The position in the data is ``step``, since batches, learning rate and augmentations are functions of it. Dropout
    uses PyTorch's generators, whose states are in ``cse.models.device.generator_states``.
    """

    encoder: SentenceEncoder
    terms: dict[str, LossTerm]
    features: list[FeatureAugmentation]
    optimizer: torch.optim.Optimizer
    selector: Selector
    step: int = 0
    """Steps done."""
    sentences: int = 0
    """Sentences seen."""
    seconds: float = 0.0
    """Training time without evaluation."""
    unchanged: Counter[str] = field(default_factory=Counter)
    """Rows in which a view did not hold, by view name."""
    viewed: Counter[str] = field(default_factory=Counter)
    """Steps in which a view occurred, by view name."""
