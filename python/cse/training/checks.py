"""What is worth a warning before training: shares of the corpus that the run cannot use well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..augment.base import Augmentation
from ..data.corpus import Corpus

__all__ = ["corpus_warnings", "unchanged_warning"]

SAMPLE_ROWS = 2000
MANY = 0.05


def corpus_warnings(
    corpus: Corpus, rows: npt.NDArray[np.int64], tokenizer: Any, max_length: int, model: str
) -> tuple[str, list[str]]:
    """Shares of duplicate rows, of sentences cut at ``max_length`` and of unknown tokens, in one phrase, and warnings.

    Duplicates are counted over all rows to train on; the others over at most 2,000 of them, evenly spread.
    """
    hashes = corpus.hashes()[rows]
    duplicates = 1 - len(np.unique(hashes)) / max(len(hashes), 1)
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


def unchanged_warning(
    augmentations: Sequence[Augmentation], corpus: Corpus, rows: npt.NDArray[np.int64], seed: int
) -> str | None:
    """A warning if more than 5 % of a sample of rows have no synthetic negative, else None."""
    chosen = rows[:: max(1, len(rows) // SAMPLE_ROWS)][:SAMPLE_ROWS]
    texts = corpus.take(chosen)
    for augmentation in augmentations:
        block = augmentation(texts, chosen, seed=seed, epoch=0).get("synthetic")
        if block is None or block.mask is None:
            continue
        share = 1 - float(block.mask.mean())
        if share > MANY:
            return (
                f"{share:.0%} of the sentences have no word that can be replaced, and are left without a synthetic "
                "negative; for text without spaces between words (Chinese, Japanese, Thai) put spaces between them and "
                "build the index with --tokenizer whitespace"
            )
    return None
