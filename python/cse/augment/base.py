"""Base classes of augmentations.

A text augmentation converts the sentences of a batch to named blocks of texts. A block lists the view names under which
its embeddings are passed to the loss:

=====================  ============================================================================
``anchor``             the sentence, or an augmented form of it
``positive``           the positive example of the anchor
``hard_negative``      a labelled hard negative (the third column of triples)
``synthetic``          a synthetic hard negative (UNA)
``synthetic_positive`` the synthetic negative encoded under another dropout mask, as its positive
=====================  ============================================================================

A block with two views is encoded twice, under different dropout masks. For example, dropout positives are one block
``anchor`` with the views ``anchor`` and ``positive``; span positives are two blocks, because the anchor is changed as
well; UNA is one block ``synthetic``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..data.pairs import LabelledPairs
from ..errors import InputError
from ..tfidf.index import TfidfIndex

if TYPE_CHECKING:
    import torch

__all__ = ["VIEWS", "Augmentation", "Block", "Example", "FeatureAugmentation", "NoOptions", "Resources"]

VIEWS = ("anchor", "positive", "hard_negative", "synthetic", "synthetic_positive")


@dataclass(frozen=True)
class Block:
    """Texts to encode, one per row of the batch. Raises ``ValueError`` for unknown views or a mask of wrong shape."""

    texts: list[str]
    views: tuple[str, ...]
    """Names of the views, from ``VIEWS``; the block is encoded once for each."""
    mask: npt.NDArray[np.bool_] | None = None
    """``(B,)`` bool, True for valid rows; the loss ignores the views in other rows. None: all rows are valid."""
    column: int | None = None
    """Number of the input column whose rows the texts are, unchanged, so that stored token ids can be used: 0 is the
    corpus, 1 and 2 are the positives and hard negatives of labelled pairs. None: the texts are new."""

    def __post_init__(self) -> None:
        """Checks the names of the views and the shape of the mask."""
        unknown = [view for view in self.views if view not in VIEWS]
        if unknown or not self.views:
            raise ValueError(f"views: {unknown} are unknown; choose from {', '.join(VIEWS)}")
        if self.mask is not None and self.mask.shape != (len(self.texts),):
            raise ValueError(f"mask: its shape is {self.mask.shape} for {len(self.texts)} texts")


@dataclass(frozen=True)
class Example:
    """A sentence and its augmented form. Spans are the (start, end) character offsets of the replaced words."""

    text: str
    augmented: str
    spans: tuple[tuple[int, int], ...] = ()
    augmented_spans: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class NoOptions:
    """Options of a method without options."""


@dataclass(frozen=True)
class Resources:
    """Resources for augmentations."""

    index: TfidfIndex | None = None
    """The TF-IDF index; None unless the run uses a method with ``needs_index = True``."""
    pairs: LabelledPairs | None = None
    """Labelled pairs; None unless the run has them."""

    def required_index(self) -> TfidfIndex:
        """Returns the index; raises ``InputError`` if there is none."""
        if self.index is None:
            raise InputError("--tfidf: this augmentation needs a TF-IDF index; make one with cse build-tfidf CORPUS")
        return self.index


class Augmentation(ABC):
    """Base class of text augmentations.

    Subclasses define ``__call__`` and, if they have options, ``Options``: a frozen dataclass whose values are read from
    the method's table in the configuration file (``[una]``) or from ``--set una.beta=0.3``. ``__call__`` must be a pure
    function of its arguments, so that results do not depend on the order in which batches are prepared.

    Args:
        options: An instance of ``Options``.
        resources: The TF-IDF index, if ``needs_index`` is True.
    """

    Options: ClassVar[type] = NoOptions
    needs_index: ClassVar[bool] = False
    summary: ClassVar[str] = ""
    """One-line description, shown by ``cse methods``."""

    def __init__(self, options: Any, resources: Resources) -> None:
        self.options = options

    @abstractmethod
    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int, epoch: int) -> dict[str, Block]:
        """Augments a batch.

        Args:
            texts: B sentences.
            rows: ``(B,)`` int64, their row numbers in the corpus.
            seed: Seed of the run.
            epoch: Epoch, from 0.

        Returns:
            Blocks of B texts by name.
        """

    def applies(self, step: int) -> bool:
        """Returns whether the batch of this step (counted from 0) is augmented. Default: always True."""
        return True

    def examples(self, texts: Sequence[str], rows: npt.NDArray[np.int64], *, seed: int) -> list[Example]:
        """Returns the texts with their augmented forms in epoch 0, which are shown before training."""
        blocks = self(texts, rows, seed=seed, epoch=0)
        block = blocks.get("synthetic") or blocks.get("positive")
        if block is None:
            return []
        return [Example(text, new) for text, new in zip(texts, block.texts, strict=True)]

    def describe(self) -> str:
        """Returns the options as one line of text, which is shown before training."""
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items())


class FeatureAugmentation(ABC):
    """Base class of augmentations of embeddings, which are applied between the encoder and the loss.

    Args:
        options: An instance of ``Options``.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: Any) -> None:
        self.options = options

    @abstractmethod
    def __call__(
        self, views: dict[str, torch.Tensor], uniform: Callable[[str, int], torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Augments the embeddings of a batch.

        Args:
            views: Embeddings by view name, each ``(B, D)`` float32.
            uniform: ``uniform(purpose, n)`` returns ``(B, n)`` float32 numbers in [0, 1), a pure function of (seed,
                epoch, row, purpose).

        Returns:
            The new embeddings by view name, each ``(B, D)``.
        """
