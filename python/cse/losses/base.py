"""Base class of loss terms. This package imports only torch and its own registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

__all__ = ["LossTerm", "NoOptions", "Step", "Views"]


@dataclass
class Views:
    """Embeddings of a batch by view name, and masks of valid rows."""

    embeddings: dict[str, Tensor]
    """Each ``(B, D)`` float32; see ``cse.augment.base`` for the names."""
    masks: dict[str, Tensor] = field(default_factory=dict)
    """``(B,)`` bool by view name, True for valid rows; without a mask all rows of a view are valid."""

    def __getitem__(self, name: str) -> Tensor:
        return self.embeddings[name]

    def __contains__(self, name: str) -> bool:
        return name in self.embeddings


@dataclass(frozen=True)
class Step:
    """Inputs of a loss term besides the embeddings."""

    number: int
    """Number of steps before this one, from 0."""
    epoch: int
    seed: int
    rows: Tensor
    """``(B,)`` int64, row numbers of the batch."""
    tokens: Mapping[str, Mapping[str, Tensor]]
    """Token ids and attention masks of the rows ``part`` by block name, ``(B, T)`` on one rank, on the device."""
    encoder: nn.Module
    """The sentence encoder. Called with tokens, it returns embeddings ``(B, D)``; ``encoder.backbone`` is the
    transformer, for terms with their own forward pass, like masked language modelling."""
    partners: Tensor | None = None
    """``(M,)`` int64, positions of the mixing partners of mixed negatives; see ``cse.rng.partners``."""
    uniform: Callable[[str, int], Tensor] | None = None
    """``uniform(purpose, n)`` returns ``(B, n)`` float32 numbers in [0, 1), a pure function of (seed, epoch, row,
    purpose)."""
    duplicates: Tensor | None = None
    """``(B, B)`` bool, True for different rows with the same sentence; None if there are none."""
    part: slice = field(default_factory=lambda: slice(None))
    """The rows of the batch whose tokens are on this rank. Embeddings and masks are those of all rows."""
    chunk_size: int | None = None
    """Rows of a forward pass whose activations may be in memory; see ``cse.losses.chunks.in_chunks``."""
    total: Callable[[Tensor], Tensor] = field(default=lambda value: value)
    """Returns the sum of a tensor over all ranks, without gradient."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a loss term without options."""


class LossTerm(nn.Module):
    """Base class of loss terms.

    The loss of a batch is the sum of its terms; a weight is applied by the term itself. A term may have parameters,
    which are trained but not saved with the encoder. Subclasses define ``forward`` and, if they have options,
    ``Options``: a frozen dataclass whose values are read from the term's table in the configuration file.

    Args:
        options: An instance of ``Options``.
        encoder: The sentence encoder; ``encoder.backbone.config`` has its sizes, ``encoder.tokenizer`` its special
            tokens.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any, encoder: nn.Module) -> None:
        super().__init__()
        self.options = options
        self.metrics: dict[str, Tensor] = {}
        """Scalar tensors of the last batch that are logged beside the loss."""

    def forward(self, views: Views, step: Step) -> Tensor:
        """Returns the value of the term for a batch, a scalar tensor."""
        raise TypeError(f"{type(self).__name__} does not define forward")
