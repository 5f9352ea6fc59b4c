"""Checks of the corpus before training: duplicate rows, truncated sentences, unknown tokens, missing negatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..augment.base import Draws, Edit
from ..data.corpus import Corpus

__all__ = ["corpus_warnings", "once_warnings", "unchanged_warning"]

SAMPLE_ROWS = 2000
FEW_ROWS = 64
MANY = 0.05


def corpus_warnings(
    corpus: Corpus, rows: npt.NDArray[np.int64], tokenizer: Any, max_length: int, model: str
) -> tuple[str, list[str]]:
    """Computes the fractions of duplicate rows, of truncated sentences and of unknown tokens.

    Duplicates are counted over all rows, the other two over at most 2,000 training rows at regular intervals.

    Args:
        corpus: The corpus.
        rows: ``(n,)`` row numbers to train on.
        tokenizer: A Hugging Face tokenizer.
        max_length: Maximum number of tokens of a sentence.
        model: Name of the model, for the warning.

    Returns:
        The fractions as text, and a list of warnings: one if over 5 % of the tokens are unknown, else none.
    """
    duplicates = corpus.repeats() / max(int(np.count_nonzero(corpus.word_counts())), 1)
    sample = corpus.take(rows[:: max(1, len(rows) // SAMPLE_ROWS)][:SAMPLE_ROWS])
    ids = tokenizer(sample, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    cut = float(np.mean([len(each) > max_length for each in ids]))
    unknown = tokenizer.unk_token_id
    tokens = sum(map(len, ids))
    missing = sum(each.count(unknown) for each in ids) / max(tokens, 1) if unknown is not None else 0.0
    text = f"{duplicates:.1%} duplicate rows, {cut:.1%} of the sentences cut at {max_length} tokens, "
    text += f"{missing:.1%} unknown tokens"
    if missing <= MANY:
        return text, []
    return text, [f"{missing:.0%} of the tokens are unknown to {model}; choose a model of the language of the corpus"]


def unchanged_warning(negatives: Sequence[Edit], corpus: Corpus, rows: npt.NDArray[np.int64], seed: int) -> str | None:
    """Returns a warning if over 5 % of a sample of at most 2,000 rows have no synthetic negative, else None.

    Of an expensive method, the sample has 64 rows.
    """
    for method in negatives:
        count = FEW_ROWS if method.expensive else SAMPLE_ROWS
        chosen = rows[:: max(1, len(rows) // count)][:count]
        texts = corpus.take(chosen)
        edited = method(texts, chosen, Draws(seed, 0))
        share = float(np.mean([new == old for new, old in zip(edited, texts, strict=True)]))
        if share > MANY:
            return (
                f"{share:.0%} of the sentences have no word that can be replaced, and are left without a synthetic "
                "negative; for text without spaces between words (Chinese, Japanese, Thai) put spaces between them and "
                "build the index with --tokenizer whitespace"
            )
    return None


def once_warnings(negatives: Mapping[str, Edit], steps: int) -> list[str]:
    """Returns a warning for each negative, by name, that is used on the first of several steps only."""
    once = [name for name, each in negatives.items() if each.applies(0) and not any(map(each.applies, range(1, steps)))]
    return [
        f"{name} is used on the first of the {steps:,} steps only ({negatives[name].describe()}); lower its interval"
        for name in once
        if steps > 1
    ]
