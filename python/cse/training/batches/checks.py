"""Checks of the corpus before training: duplicate rows, truncated sentences, unknown tokens, methods without effect."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...augment.base import Draws, Edit, Pairing
from ...data.corpus import Corpus
from ...encoder.tokens import token_lists
from ...encoder.vocabulary import readability
from ...errors import InputError
from .prepared import changed_rows
from .texts import Batches, Order

SAMPLE_ROWS = 2000
FEW_ROWS = 64
MANY = 0.05
# Prefixes of the Unicode names of letters in scripts without spaces between words.
UNSEGMENTED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


def check_learnable(
    order: Order, corpus: Corpus, named: tuple[str, Edit | Pairing], negatives: Mapping[str, Edit]
) -> None:
    """Raises ``InputError`` if a sample of the corpus shows that nothing can be learned with the positives, given with
    their name, and the negatives."""
    positive, method = named
    texts, made = sampled(order, corpus, method)
    if isinstance(made, list):
        learnable = made != texts
    else:
        valid = np.ones(len(texts), dtype=bool) if made.mask is None else made.mask
        positives = made.positives or [None] * len(texts)  # None: the sentence itself, under another dropout mask
        learnable = any(
            one != other and holds for one, other, holds in zip(made.anchors, positives, valid, strict=True)
        )
    if not learnable:
        raise InputError(
            f"--positive {positive}: none of {len(texts):,} sampled sentences has a positive that differs from it; "
            "give longer sentences, with spaces between words, or use --positive dropout"
        )
    for name, edit in negatives.items():
        if not edit.applies(0):
            continue
        texts, made = sampled(order, corpus, edit)
        if made == texts:
            raise InputError(
                f"--negative {name}: none of {len(texts):,} sampled sentences has a word that can be replaced; "
                f"{replaceable(texts)}, or train without these negatives"
            )


def sampled(order: Order, corpus: Corpus, method: Edit | Pairing) -> tuple[list[str], Any]:
    """Returns a sample of the sentences of the first epoch, and what the method makes from them."""
    count = FEW_ROWS if method.expensive else SAMPLE_ROWS
    rows = order.rows_of_epoch(0)
    rows = rows[:: max(1, len(rows) // count)][:count]
    texts = corpus.take(rows)
    return texts, method(texts, rows, Draws(order.seed, 0))


def replaceable(texts: Sequence[str]) -> str:
    """Returns advice on how to make words of these texts replaceable, depending on the script."""
    characters = "".join(texts[:FEW_ROWS])
    letters = [character for character in characters if character.isalpha()]
    unsegmented = sum(unicodedata.name(letter, "").startswith(UNSEGMENTED) for letter in letters)
    if 2 * unsegmented > len(letters):
        return (
            "for text without spaces between words (Chinese, Japanese, Thai), build the index with --tokenizer "
            "wordpieces and the --model of the run, or put spaces between words and use --tokenizer whitespace"
        )
    if not any(character.isalnum() for character in characters):
        return "for text without letters (emoji, punctuation), build the index with --tokenizer whitespace"
    return "check that the index was built from this corpus"


def cut_off(lengths: npt.NDArray[np.int64], max_length: int, longest: int) -> str:
    """Returns the fractions of texts that are truncated, and of tokens cut off, as text."""
    read = np.minimum(lengths, max_length).sum()
    rows, tokens = np.mean(lengths > max_length), 1 - read / lengths.sum()
    text = f"{rows:.1%} of the texts truncated to {max_length} tokens, which cuts off {tokens:.1%} of all tokens"
    larger = min(2 * max_length, longest)
    if rows <= MANY or larger <= max_length:
        return text
    more = np.minimum(lengths, larger).sum()
    return (
        f"{text} (--max-length {larger} would cut off {1 - more / lengths.sum():.1%}, for {more / read:.1f} times the "
        "computation)"
    )


def examine(
    batches: Batches, negatives: Mapping[str, Edit], tokenizer: Any, max_length: int, longest: int, model: str
) -> tuple[str, list[str]]:
    """Describes the texts that a run is about to train on, and warns of what is probably not intended."""
    corpus = batches.corpus
    duplicates = corpus.repeats() / max(int(np.count_nonzero(corpus.word_counts())), 1)
    sample, texts = sampled(batches.order, corpus, batches.positive)
    if isinstance(batches.positive, Edit) and batches.positive.edits_tokens:
        texts = sample  # tokens are edited after truncation
    made = [*sample, *texts] if isinstance(texts, list) else [*texts.anchors, *(texts.positives or ())]
    anchors = token_lists(tokenizer, made[: len(sample)], max_length)["input_ids"]
    if len(anchors) > 1 and len(set(map(tuple, anchors))) == 1:
        raise InputError(
            f"CORPUS: the first {max_length} tokens of all {len(anchors):,} sampled sentences are identical, so none "
            "is a negative of another; give different sentences, or raise --max-length"
        )
    ids = tokenizer(sample, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    encoded = tokenizer(made, add_special_tokens=True, truncation=False, verbose=False)["input_ids"]
    lengths = np.array([len(sequence) for sequence in encoded], dtype=np.int64)
    unknown = tokenizer.unk_token_id
    tokens = sum(map(len, ids))
    missing = sum(sequence.count(unknown) for sequence in ids) / max(tokens, 1) if unknown is not None else 0.0
    text = f"{duplicates:.1%} duplicate rows, {cut_off(lengths, max_length, longest)}, {missing:.1%} unknown tokens"
    warnings = [warning] if (warning := readability(tokenizer, sample).warning(model)) else []
    if missing > MANY and not warnings:
        warnings.append(
            f"{missing:.0%} of the tokens are unknown to {model}; choose a model for the language of the corpus"
        )
    warnings += unchanged_warning(batches, tokenizer, max_length)
    steps = len(batches)
    return text, warnings + [
        f"{name} is used only in the first of the {steps:,} steps ({edit.describe()}); lower its interval"
        for name, edit in negatives.items()
        if steps > 1 and edit.applies(0) and not any(map(edit.applies, range(1, steps)))
    ]


def unchanged_warning(batches: Batches, tokenizer: Any, max_length: int) -> list[str]:
    """Returns a warning for the first edit that leaves all positives unchanged, or over 5 % without a negative."""

    def unchanged(method: Edit) -> tuple[list[str], int]:  # the unchanged texts of the sample, and its size
        texts, made = sampled(batches.order, batches.corpus, method)
        ids = [token_lists(tokenizer, sentences, max_length)["input_ids"] for sentences in (texts, made)]
        return [text for text, changed in zip(texts, changed_rows(*ids), strict=True) if not changed], len(texts)

    positive = batches.positive
    if isinstance(positive, Edit) and not (positive.edits_tokens or positive.expensive):
        left, count = unchanged(positive)
        if len(left) == count and positive.is_positive(positive.options):
            return [
                f"the edits of --positive change the tokens of none of {count:,} sampled sentences, perhaps because "
                "the tokenizer lower-cases them; the run trains as with --positive dropout"
            ]
    for method in batches.negatives:
        left, count = unchanged(method)
        if len(left) > MANY * count:
            return [
                f"{len(left) / count:.0%} of the sentences have no word that can be replaced, and are left without a "
                f"synthetic negative; {replaceable(left)}"
            ]
    return []
