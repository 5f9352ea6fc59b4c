"""Which edits count as unchanged, what happens to their rows, and when the user is warned.

An edit is unchanged if, after truncation, it has the same token ids as the sentence. An unchanged negative is masked,
unless the recipe keeps duplicates. An unchanged positive remains, because dropout makes it another view; if there is
no dropout, it is masked.
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
    """Returns ``(n,)`` bool, True where an edited sentence has other token ids than the original."""
    return np.array([list(new) != list(old) for new, old in zip(after, before, strict=True)], dtype=bool)


def is_masked(role: str, *, without_dropout: bool, keep_duplicates: bool) -> bool:
    """Returns whether unchanged rows of a view are masked.

    Args:
        role: Role of the view.
        without_dropout: Whether anchors and positives are encoded without dropout.
        keep_duplicates: The setting of the run with this name.
    """
    return without_dropout if role == "positive" else not keep_duplicates


def unchanged_warning(
    negatives: Sequence[Edit],
    corpus: Corpus,
    rows: npt.NDArray[np.int64],
    seed: int,
    tokenizer: Any,
    max_length: int,
) -> str | None:
    """Returns a warning if over 5 % of a sample of at most 2,000 rows have no synthetic negative, else None.

    For an expensive method, the sample has at most 64 rows.
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
