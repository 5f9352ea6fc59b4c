"""The interface of augmentations.

A text augmentation turns the sentences of a batch into named blocks of texts. Each block says under which view names
the encoder's output for it enters the loss:

=====================  ============================================================================
``anchor``             the sentence, or the form of it that the augmentation chose
``positive``           what the anchor is to be similar to
``hard_negative``      a labelled hard negative (the third column of triples)
``synthetic``          a synthetic hard negative (UNA)
``synthetic_positive`` the dropout twin of the synthetic negative, which makes the two a pair of their own
=====================  ============================================================================

A block with two views is encoded twice, under different dropout masks. Examples: dropout positives are one block
``anchor`` with the views anchor and positive; cropping and span positives are two blocks, since they change the anchor
too; UNA is one block ``synthetic``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from ..tfidf.index import TfidfIndex

if TYPE_CHECKING:
    import torch

__all__ = ["VIEWS", "Augmentation", "Block", "Example", "FeatureAugmentation", "NoOptions", "Resources"]

VIEWS = ("anchor", "positive", "hard_negative", "synthetic", "synthetic_positive")


@dataclass(frozen=True)
class Block:
    """Texts of one kind, one per row of the batch."""

    texts: list[str]
    views: tuple[str, ...]
    """The views that this block is encoded as, from ``VIEWS``."""
    mask: npt.NDArray[np.bool_] | None = None
    """(B,) True where the views hold; the loss leaves out the others. None: they hold for every row."""

    def __post_init__(self) -> None:
        """Raises ``ValueError`` for unknown views or a mask of another length."""
        unknown = [view for view in self.views if view not in VIEWS]
        if unknown or not self.views:
            raise ValueError(f"views: {unknown} are unknown; choose from {', '.join(VIEWS)}")
        if self.mask is not None and self.mask.shape != (len(self.texts),):
            raise ValueError(f"mask: its shape is {self.mask.shape} for {len(self.texts)} texts")


@dataclass(frozen=True)
class Example:
    """A sentence and its augmented form; spans are (start, end) in characters of what was replaced."""

    text: str
    augmented: str
    spans: tuple[tuple[int, int], ...] = ()
    augmented_spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class NoOptions:
    """Options of a method that has none."""


@dataclass(frozen=True)
class Resources:
    """What an augmentation may use besides the texts."""

    index: TfidfIndex | None = None
    """The TF-IDF index, opened if a method with ``needs_index`` is used."""

    def required_index(self) -> TfidfIndex:
        """The index; ``InputError`` if there is none."""
        if self.index is None:
            raise InputError("--tfidf: this augmentation needs a TF-IDF index; make one with cse build-tfidf CORPUS")
        return self.index


class Augmentation(ABC):
    """A text augmentation.

    Subclasses define ``Options``, a frozen dataclass that is filled from the method's own table of the configuration
    file (``[una]``) or from ``--set una.beta=0.3``, and ``__call__``. It must be a function of its arguments alone, so
    that a run repeats itself for any batch split, number of workers or resumption.
    """

    Options: ClassVar[type] = NoOptions
    needs_index: ClassVar[bool] = False
    summary: ClassVar[str] = ""
    """One line for ``cse methods``."""

    def __init__(self, options: Any, resources: Resources) -> None:
        self.options = options

    @abstractmethod
    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int, epoch: int) -> dict[str, Block]:
        """Blocks for a batch: ``texts`` are B sentences, ``rows`` (B,) their row numbers in the corpus."""

    def applies(self, step: int) -> bool:
        """Whether the batch of this step, counted from 0, is augmented; True by default."""
        return True

    def examples(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int) -> list[Example]:
        """A few sentences with what the augmentation makes of them in epoch 0, to be shown before training."""
        blocks = self(texts, rows, seed=seed, epoch=0)
        block = blocks.get("synthetic") or blocks.get("positive")
        if block is None:
            return []
        return [Example(text, new) for text, new in zip(texts, block.texts, strict=True)]

    def describe(self) -> str:
        """The options in one phrase, for the first lines of a run."""
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items())


class FeatureAugmentation(ABC):
    """An augmentation of embeddings, applied before the loss."""

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def __call__(
        self, views: dict[str, torch.Tensor], uniform: Callable[[str, int], torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """New embeddings by view name, each ``(B, D)``.

        ``uniform(purpose, n)`` returns ``(B, n)`` float32 numbers in [0, 1), a function of (seed, epoch, row, purpose).
        """
