"""Checks of the corpus before training: duplicate rows, truncated sentences, unknown tokens, nothing to learn from."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..augment.base import Draws, Edit, Pairing
from ..data.corpus import Corpus
from ..errors import InputError

__all__ = ["check_learnable", "corpus_warnings", "once_warnings", "replaceable", "sample_of"]

SAMPLE_ROWS = 2000
FEW_ROWS = 64
MANY = 0.05
# Starts of the Unicode names of letters that are written without spaces between words.
UNSEGMENTED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def check_learnable(
    positive: tuple[str, Edit | Pairing],
    negatives: Iterable[tuple[str, Edit]],
    corpus: Corpus,
    rows: npt.NDArray[np.int64],
    seed: int,
) -> None:
    """Raises ``InputError`` if in a sample of at most 2,000 rows a method has no effect on any of them.

    Sentences are all equal, so that none is another's negative; positives are all masked, or equal to their anchors
    where the method makes other texts; or synthetic negatives are all equal to their sentences.

    Args:
        positive: Name and method.
        negatives: As ``positive``.
        corpus: The corpus.
        rows: ``(n,)`` row numbers to train on.
        seed: Seed of the run.
    """
    texts = corpus.take(sample_of(rows))
    if len(texts) > 1 and len(set(texts)) == 1:
        raise InputError(
            f"CORPUS: all {len(texts):,} sampled sentences are equal, and none is a negative of another; give "
            "different sentences"
        )
    name, method = positive
    chosen = sample_of(rows, method)
    texts = corpus.take(chosen)
    if not _has_positives(method, texts, chosen, seed):
        raise InputError(
            f"--positive {name}: none of {len(texts):,} sampled sentences has a positive that differs from it; give "
            "longer sentences, with spaces between words, or use --positive dropout"
        )
    for name, edit in negatives:
        chosen = sample_of(rows, edit)
        texts = corpus.take(chosen)
        if edit.applies(0) and edit(texts, chosen, Draws(seed, 0)) == texts:
            raise InputError(
                f"--negative {name}: in all {len(texts):,} sampled sentences there is no word that can be replaced; "
                f"{replaceable(texts)}, or train without these negatives"
            )


def _has_positives(method: Edit | Pairing, texts: list[str], rows: npt.NDArray[np.int64], seed: int) -> bool:
    if isinstance(method, Edit):
        return method(texts, rows, Draws(seed, 0)) != texts
    paired = method(texts, rows, Draws(seed, 0))
    if paired.mask is not None and not paired.mask.any():
        return False
    if paired.positives is None:
        return True
    valid = np.ones(len(texts), dtype=bool) if paired.mask is None else paired.mask
    return any(
        one != other and holds for one, other, holds in zip(paired.anchors, paired.positives, valid, strict=True)
    )


def sample_of(rows: npt.NDArray[np.int64], method: Edit | Pairing | None = None) -> npt.NDArray[np.int64]:
    """Returns at most 2,000 rows at regular intervals, or 64 for an expensive method."""
    count = FEW_ROWS if method is not None and method.expensive else SAMPLE_ROWS
    return rows[:: max(1, len(rows) // count)][:count]


def replaceable(texts: Sequence[str]) -> str:
    """Returns what makes words of these texts replaceable, which depends on their script."""
    characters = "".join(texts[:FEW_ROWS])
    letters = [each for each in characters if each.isalpha()]
    unsegmented = sum(unicodedata.name(each, "").startswith(UNSEGMENTED) for each in letters)
    if 2 * unsegmented > len(letters):
        return (
            "for text without spaces between words (Chinese, Japanese, Thai) put spaces between them and build the "
            "index with --tokenizer whitespace"
        )
    if not any(each.isalnum() for each in characters):
        return "for text without letters (emoji, punctuation) build the index with --tokenizer whitespace"
    return "check that the index was built from this corpus"


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
    sample = corpus.take(sample_of(rows))
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


def once_warnings(negatives: Mapping[str, Edit], steps: int) -> list[str]:
    """Returns a warning for each negative, by name, that is used on the first of several steps only."""
    once = [name for name, each in negatives.items() if each.applies(0) and not any(map(each.applies, range(1, steps)))]
    return [
        f"{name} is used on the first of the {steps:,} steps only ({negatives[name].describe()}); lower its interval"
        for name in once
        if steps > 1
    ]
