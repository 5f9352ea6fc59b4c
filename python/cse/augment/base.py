"""Base classes of text methods, and the blocks of texts that make up a batch.

There are two kinds of text methods:

- An *edit* changes sentences one by one: ``(texts, rows, draws) -> texts``. The flag that names the edit determines its
  role: with ``--positive``, the edited sentence is the positive of the original; with ``--negative``, it is a hard
  negative.
- A *pairing* decides which two texts form an anchor and its positive: ``(texts, rows, draws) -> Paired``. It is used
  with ``--positive``.

Edits and pairings are pure functions of their arguments, so that results do not depend on the order in which batches
are prepared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..options import WithOptions
from ..rng import Draws as Draws

if TYPE_CHECKING:
    from ..context import TextContext
    from ..views import Role

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class View:
    """One encoding of the texts of a block; see ``Block``."""

    name: str
    """Name of the view, for the log; see ``cse.views``."""
    role: Role
    encoder: str = "first"
    """``first``: the encoder that is saved. ``second``: a second encoder; see ``TrainConfig.positive_encoder``."""
    dropout: float | None = None
    """Dropout probability of the transformer; None: the value in its configuration."""
    hook: str | None = None
    """Name of the hook that changes this forward pass; see ``cse.hooks.HOOKS``."""
    draws: str = ""
    """Prefix of the purposes of the random numbers that the hook draws."""

    @property
    def passes(self) -> tuple[object, ...]:
        """The settings that views must share to be encoded in one forward pass."""
        return (self.encoder, self.dropout, self.hook, self.draws)


@dataclass(frozen=True)
class Block:
    """Texts to encode, one per row of the batch."""

    texts: list[str]
    views: tuple[View, ...]
    """The block is encoded once for each view, under different dropout masks, unless ``shared`` is True."""
    mask: npt.NDArray[np.bool_] | None = None
    """``(B,)`` bool, True for valid rows; the loss ignores the other rows of the block. None: all rows are valid."""
    column: int | None = None
    """Index of the input column from which the texts are taken unchanged, so that their stored token ids can be used: 0
    for the corpus, 1 for labelled positives, 2 for labelled hard negatives. None: the texts are new."""
    edited: bool = False
    """Whether the texts are the output of an edit, which may leave a sentence of the corpus unchanged."""
    shared: bool = False
    """Whether the block is encoded only once for all its views, under one dropout mask."""
    edit: TokenEdit | None = None
    """An edit of the token ids of the texts; None: the token ids are not edited."""
    local: bool = False
    """Whether texts and mask cover only the rows of this process, because the texts are slow to make."""


@dataclass(frozen=True)
class Example:
    """A sentence and its augmented form."""

    text: str
    augmented: str
    spans: tuple[tuple[int, int], ...] = ()
    """(start, end) character offsets of the replaced words in ``text``."""
    augmented_spans: tuple[tuple[int, int], ...] = ()
    """(start, end) character offsets of the replacements in ``augmented``."""
    further: tuple[str, ...] = ()
    """The row's texts in further columns, such as a labelled hard negative."""
    method: str = ""
    """Name of the method, filled in by the run."""


class TextMethod(WithOptions, ABC):
    """Base class of edits and pairings.

    Subclasses define ``__call__`` and, if they have options, ``Options``: a frozen dataclass whose values are read from
    the method's table in the configuration file, such as ``[una]``, or from flags such as ``--set una.beta=0.3``.

    Args:
        options: An instance of ``Options``.
        context: The resources of the run.
    """

    expensive: ClassVar[bool] = False
    """Whether the texts are slow to make. If so, each process makes texts only for the rows that it encodes, and the
    checks before training use only a few rows."""
    warning: str = ""
    """A warning that is shown before training; set by the constructor."""

    def __init__(self, options: Any, context: TextContext) -> None:
        self.options = options

    def describe(self) -> str:
        """Returns the options as one line of text, which is shown before training."""
        return ", ".join(f"{name} {value}" for name, value in vars(self.options).items())

    @classmethod
    def makes_pairs(cls, options: Any) -> bool:
        """Returns whether negatives made by this method also form pairs; see ``Edit.makes_pairs``."""
        return False

    def rows_of_epoch(self, rows: Rows, draws: Draws) -> Rows:
        """Returns which of the rows to train on an epoch contains, the same number in each epoch. Default: all."""
        return rows

    @abstractmethod
    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        """Returns the texts with their augmented forms, to be shown before training."""


class Edit(TextMethod):
    """Base class of methods that change sentences one by one.

    A sentence that cannot be changed is returned as it is. An edited sentence is *unchanged* if, after truncation, it
    has the same token ids as the original. An unchanged negative is masked, unless the run keeps duplicates (as in the
    presets of published methods). An unchanged positive is encoded under a different dropout mask from its anchor;
    without dropout, it is masked. The number of unchanged sentences is logged.

    If ``edits_tokens`` is True, training edits the token ids of the truncated sentence with ``edit_tokens``, instead of
    the sentence itself. The edited text is then used only where there are no tokens, such as in ``one-of``.
    """

    of_negatives: ClassVar[frozenset[str]] = frozenset()
    """Names of the options that have an effect only if the method makes negatives."""
    edits_tokens: ClassVar[bool] = False
    """Whether the method defines ``edit_tokens``; such a method must not be ``expensive``."""

    def edit_tokens(self, ids: Sequence[list[Any]], rows: Rows, draws: Draws) -> list[list[Any]]:
        """Edits the token ids of truncated sentences.

        Args:
            ids: n lists of token ids, without special tokens and without the tokens of a prompt or template.
            rows: ``(n,)`` int64, the row numbers of the sentences in the corpus.
            draws: Random numbers, keyed by row.

        Returns:
            n lists of token ids, which may be longer than the maximum length. Tokens beyond the largest length that the
            model accepts are cut off.
        """
        raise TypeError(f"{type(self).__name__} does not define edit_tokens")

    def most_tokens(self, count: int) -> int:
        """Returns the largest number of tokens that ``edit_tokens`` makes from at most ``count`` tokens."""
        return count

    @abstractmethod
    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[str]:
        """Edits sentences.

        Args:
            texts: n sentences.
            rows: ``(n,)`` int64, their row numbers in the corpus.
            draws: Random numbers, keyed by row.

        Returns:
            n sentences.
        """

    @classmethod
    def makes_pairs(cls, options: Any) -> bool:
        """Returns whether an edited sentence, used as a negative, is also an anchor with itself as positive (UNA)."""
        return False

    @classmethod
    def is_positive(cls, options: Any) -> bool:
        """Returns whether an edited sentence, used with ``--positive``, is the positive of the original.

        If not, the positive is the original under a different dropout mask, and the edited sentence is a further view,
        ``edited``, which contrastive losses ignore (AugCSE). Default: always True.
        """
        return True

    def further(self) -> Sequence[Edit]:
        """Returns edits whose sentences are the further views ``edited_2``, ``edited_3``, ..., like ``edited``.

        Used only if ``is_positive`` returns False. Each call returns the same edits. Default: none.
        """
        return ()

    def applies(self, step: int) -> bool:
        """Returns whether the method provides negatives at this step (counted from 0). Default: always True."""
        return True

    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        return [Example(text, new) for text, new in zip(texts, self(texts, rows, draws), strict=True)]


@dataclass(frozen=True)
class TokenEdit:
    """An edit of token ids, with the rows and random numbers of a batch; see ``Edit.edit_tokens``."""

    method: Edit
    rows: Rows
    draws: Draws

    def __call__(self, ids: Sequence[list[Any]]) -> list[list[Any]]:
        return self.method.edit_tokens(ids, self.rows, self.draws)


@dataclass(frozen=True)
class Paired:
    """Anchors and positives of n rows."""

    anchors: list[str]
    positives: list[str] | None = None
    """None: each anchor is its own positive, encoded under a different dropout mask."""
    mask: npt.NDArray[np.bool_] | None = None
    """``(n,)`` bool, True for rows that have a positive; None: all rows have one."""
    negatives: list[str] | None = None
    """Hard negatives."""
    columns: tuple[int | None, int | None, int | None] = (None, None, None)
    """Input columns from which the anchors, positives and negatives are taken unchanged; see ``Block.column``."""
    more_negatives: Sequence[list[str]] = ()
    """Further hard negatives of each row, if it has several; their input columns follow ``negatives``."""
    labels: npt.NDArray[np.int64] | None = None
    """``(n,)`` classes of the rows, negative for a row without one. Rows of the same class are not negatives of each
    other. None: no row has a class."""
    shared: bool = False
    """If ``positives`` is None: whether an anchor and its positive are encoded under the same dropout mask."""
    negative_masks: Sequence[npt.NDArray[np.bool_]] = ()
    """``(n,)`` bool for each column of hard negatives, True for those that are used; empty if all are."""


class Pairing(TextMethod):
    """Base class of methods that decide which two texts form an anchor and its positive."""

    @abstractmethod
    def __call__(self, texts: Sequence[str], rows: Rows, draws: Draws) -> Paired:
        """Returns the anchors and positives of n sentences; the arguments are the same as for ``Edit.__call__``."""

    def examples(self, texts: Sequence[str], rows: Rows, draws: Draws) -> list[Example]:
        """Returns the sentences with their positives; an empty list if each sentence is its own positive."""
        paired = self(texts, rows, draws)
        if paired.positives is None:
            return []
        return [Example(text, new) for text, new in zip(texts, paired.positives, strict=True)]
