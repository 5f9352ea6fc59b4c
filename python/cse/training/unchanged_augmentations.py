"""Detects sentences that an edit leaves unchanged, decides whether their rows are masked, and warns about them.

An edited sentence is unchanged if, after truncation, it has the same token ids as the original. An unchanged negative
is masked (excluded from the loss), unless the run keeps duplicates. An unchanged positive is masked only without
dropout; with dropout, its embedding differs from that of its anchor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..augment.base import Draws, Edit
from ..data.corpus import Corpus
from ..models.encoder import token_lists
from .checks import replaceable, sample_of

__all__ = ["changed_rows", "is_masked", "unchanged_warning"]

MANY = 0.05


def changed_rows(before: Iterable[Any], after: Iterable[Any]) -> npt.NDArray[np.bool_]:
    """Returns ``(n,)`` bool, True where an edited sentence and its original have different token ids."""
    return np.array([list(new) != list(old) for new, old in zip(after, before, strict=True)], dtype=bool)


def is_masked(role: str, *, without_dropout: bool, keep_duplicates: bool) -> bool:
    """Returns whether unchanged rows of a view are masked.

    Args:
        role: Role of the view; see ``cse.views``.
        without_dropout: Whether anchors and positives are encoded without dropout.
        keep_duplicates: Whether the run keeps duplicates (``--keep-duplicates``).
    """
    if role == "other":
        return False
    return without_dropout if role == "positive" else not keep_duplicates


def unchanged_warning(
    negatives: Sequence[Edit],
    corpus: Corpus,
    rows: npt.NDArray[np.int64],
    seed: int,
    tokenizer: Any,
    max_length: int,
) -> str | None:
    """Returns a warning for the first method that leaves over 5 % of the sampled rows unchanged, or None.

    The sample has at most 2,000 rows, or 64 for an expensive method (``TextMethod.expensive``).
    """
    for method in negatives:
        chosen = sample_of(rows, method)
        texts = corpus.take(chosen)
        ids = [
            token_lists(tokenizer, each, max_length)["input_ids"]
            for each in (texts, method(texts, chosen, Draws(seed, 0)))
        ]
        unchanged = [text for text, changed in zip(texts, changed_rows(*ids), strict=True) if not changed]
        share = len(unchanged) / len(texts)
        if share > MANY:
            return (
                f"{share:.0%} of the sentences have no word that can be replaced, and are left without a synthetic "
                f"negative; {replaceable(unchanged)}"
            )
    return None
