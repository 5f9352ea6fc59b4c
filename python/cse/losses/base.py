"""The interface of loss terms. Imports torch alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

__all__ = ["LossTerm", "NoOptions", "Step", "Views"]


@dataclass
class Views:
    """Embeddings of a batch by view name, and the rows for which each view holds."""

    embeddings: dict[str, Tensor]
    """Each ``(B, D)`` float32; see ``cse.augment.base`` for the names."""
    masks: dict[str, Tensor] = field(default_factory=dict)
    """(B,) bool by view name; a view without a mask holds for every row."""

    def __getitem__(self, name: str) -> Tensor:
        return self.embeddings[name]

    def __contains__(self, name: str) -> bool:
        return name in self.embeddings


@dataclass(frozen=True)
class Step:
    """What a loss term may use besides the embeddings."""

    number: int
    """Steps done before this one."""
    epoch: int
    seed: int
    rows: Tensor
    """(B,) int64 row numbers of the batch."""
    tokens: Mapping[str, Mapping[str, Tensor]]
    """Token ids and attention masks ``(B, T)`` by block name, on the device."""
    encoder: nn.Module
    """Calling it with tokens returns embeddings ``(B, D)``; ``encoder.backbone`` is the transformer. A term that needs
    a forward pass of its own, like masked language modelling, makes it here."""
    partners: Tensor | None = None
    """Positions that mixed negatives are made with; see ``cse.rng.partners``."""
    uniform: Callable[[str, int], Tensor] | None = None
    """``uniform(purpose, n)``: (B, n) numbers in [0, 1), a function of (seed, epoch, row, purpose)."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a term that has none."""


class LossTerm(nn.Module):
    """A term of the loss.

    Terms are summed; a term applies its own weight. It may own parameters, which are trained and not saved with the
    encoder. Subclasses define ``Options``, a frozen dataclass filled from the term's table of the configuration file,
    and ``forward``.

    Args:
        options: An instance of ``Options``.
        encoder: The sentence encoder: its ``backbone.config`` gives sizes, its ``tokenizer`` special tokens.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any, encoder: nn.Module) -> None:
        super().__init__()
        self.options = options
        self.metrics: dict[str, Tensor] = {}
        """Scalar tensors of the last batch that are logged beside the loss."""

    def forward(self, views: Views, step: Step) -> Tensor:
        """The term's contribution to the loss of this batch, a scalar."""
        raise TypeError(f"{type(self).__name__} does not define forward")
