"""Base classes of text methods, and the blocks of texts that a batch consists of.

There are two kinds of text methods:

- An *edit* changes sentences one by one: ``(texts, rows, draws) -> texts``. The flag determines its role: with
  ``--positive`` the edited sentence is the positive of the unchanged one, with ``--negative`` it is a hard negative.
- A *pairing* says which two texts belong together: ``(texts, rows, draws) -> Paired``. It is used with ``--positive``.

Both are pure functions of their arguments, so that results do not depend on the order in which batches are prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..rng import Draws

if TYPE_CHECKING:
    from ..context import Context
    from ..views import Role

__all__ = ["Block", "Draws", "Edit", "Example", "NoOptions", "Paired", "Pairing", "TextMethod", "View"]

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """One encoding of a block."""

    name: str
    """Name of the view, for the log; see ``cse.views``."""
    role: Role
    encoder: str = "first"
    """``first``: the encoder that is saved. ``second``: another one; see ``TrainConfig.positive_encoder``."""
    dropout: float | None = None
    """Dropout probability of the transformer; None: that of its configuration."""
    hook: str | None = None
    """Name of the hook that changes this forward pass; see ``cse.features.hooks``."""

    @property
    def passes(self) -> tuple[object, ...]:
        """What views must have in common to be encoded in one forward pass."""
        return (self.encoder, self.dropout, self.hook)


@dataclass(frozen=True)
class Block:
    """Texts to encode, one per row of the batch. Raises ``ValueError`` without a view or for a mask of wrong shape."""

    texts: list[str]
    views: tuple[View, ...]
    """The block is encoded once for each view, under different dropout masks."""
    mask: npt.NDArray[np.bool_] | None = None
    """``(B,)`` bool, True for valid rows; the loss ignores the views in other rows. None: all rows are valid."""
    column: int | None = None
    """Number of the input column whose rows the texts are, unchanged, so that stored token ids can be used: 0 is the
    corpus, 1 and 2 are the positives and hard negatives of labelled pairs. None: the texts are new."""
    edited: bool = False
    """Whether the texts are edited sentences of the corpus, which may be unchanged."""
    shared: bool = False
    """Whether the views are encoded once, under one dropout mask."""
    local: bool = False
    """Whether texts and mask cover only the rows of this process, because they take long to make."""

    def __post_init__(self) -> None:
        """Checks that there is a view, and the shape of the mask."""
        if not self.views:
            raise ValueError("views: a block needs at least one")
        if self.mask is not None and self.mask.shape != (len(self.texts),):
            raise ValueError(f"mask: its shape is {self.mask.shape} for {len(self.texts)} texts")


@dataclass(frozen=True)
class Example:
    """A sentence and its augmented form. Spans are the (start, end) character offsets of the replaced words."""

    text: str
    augmented: str
    spans: tuple[tuple[int, int], ...] = ()
    augmented_spans: tuple[tuple[int, int], ...] = ()
    further: tuple[str, ...] = ()
    """Texts of further columns, like a labelled hard negative."""
    method: str = ""
    """Name of the method; a run sets it."""


@dataclass(frozen=True)
class NoOptions:
    """Options of a method without options."""


class TextMethod(ABC):
    """Base class of edits and pairings.

    Subclasses define ``__call__`` and, if they have options, ``Options``: a frozen dataclass whose values are read from
    the method's table in the configuration file (``[una]``) or from ``--set una.beta=0.3``.

    Args:
        options: An instance of ``Options``.
        context: The resources of the run.
    """

    Options: ClassVar[type] = NoOptions
    summary: ClassVar[str] = ""
    """One-line description, shown by ``cse methods``."""
    expensive: ClassVar[bool] = False
    """Whether texts take long to make: a process then gets only the rows that it encodes, and checks use few rows."""

    def __init__(self, options: Any, context: Context) -> None:
        self.options = options

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns the defaults that this method, with these options, implies for settings of the run."""
        return {}

    def describe(self) -> str:
        """Returns the options as one line of text, which is shown before training."""
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items())

    @classmethod
    def makes_pairs(cls, options: Any) -> bool:
        """Returns whether its texts, as negatives, are further pairs; see ``Edit``."""
        return False

    @abstractmethod
    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        """Returns the texts with their augmented forms, which are shown before training."""


class Edit(TextMethod):
    """Base class of methods that change sentences one by one.

    A sentence that cannot be changed is returned as it is. After truncation, an edit with the same token ids as the
    sentence is *unchanged*: as a negative its row is masked, unless the run keeps duplicates, as the papers do; as a
    positive it remains, under another dropout mask. Both are counted in the log.
    """

    @abstractmethod
    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[str]:
        """Edits some sentences.

        Args:
            texts: n sentences.
            rows: ``(n,)`` int64, their row numbers in the corpus.
            draws: Random numbers, keyed by row.

        Returns:
            n sentences.
        """

    @classmethod
    def makes_pairs(cls, options: Any) -> bool:
        """Returns whether, as a negative, the edited sentence is a further anchor and its own positive (UNA)."""
        return False

    def applies(self, step: int) -> bool:
        """Returns whether a negative is used at this step (counted from 0). Default: always True."""
        return True

    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        """Returns the sentences and their edited forms."""
        return [Example(text, new) for text, new in zip(texts, self(texts, rows, draws), strict=True)]


@dataclass(frozen=True)
class Paired:
    """Anchors and positives of n rows."""

    anchors: list[str]
    positives: list[str] | None = None
    """None: the anchors again, under another dropout mask."""
    mask: npt.NDArray[np.bool_] | None = None
    """``(n,)`` bool, True for rows that have a positive; None: all have one."""
    negatives: list[str] | None = None
    """Hard negatives."""
    columns: tuple[int | None, int | None, int | None] = (None, None, None)
    """Input columns whose rows the anchors, positives and negatives are, unchanged; see ``Block.column``."""
    shared: bool = False
    """Without positives: whether the positive is the anchor under the same dropout mask."""


class Pairing(TextMethod):
    """Base class of methods that say which two texts belong together."""

    labelled: ClassVar[bool] = False
    """Whether equal positives of two rows are duplicates, as equal sentences are."""

    @abstractmethod
    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> Paired:
        """Returns the anchors and positives of n sentences; the arguments are those of ``Edit.__call__``."""

    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        """Returns anchors and positives; the sentences and their positives where the anchors are the sentences."""
        paired = self(texts, rows, draws)
        if paired.positives is None:
            return []
        return [Example(text, new) for text, new in zip(texts, paired.positives, strict=True)]
