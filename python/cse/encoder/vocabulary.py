"""How the tokenizer of a model cuts the words of texts: whether it can read them, and which ones it divides.

The words of a text are what the tokenizer passes to its model. White space always separates words, so each distinct
part of the texts between white space is passed to the tokenizer once, after a space. For the first word of a text, the
counts are therefore approximate if a tokenizer marks the space before a word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

import cse._core as _core

from .._core import is_blank
from ..errors import InputError
from ..tfidf.options import word_options
from .base import unwrapped

MIN_COUNT = 5
"""Minimum number of occurrences of a word that is listed."""


@dataclass(frozen=True)
class DividedWord:
    """A word that the tokenizer divides into two or more pieces."""

    word: str
    count: int
    pieces: tuple[str, ...]
    """Its pieces; of several forms (with and without a mark of the space before it), the most frequent one."""
    saved: int
    """Number of tokens of the corpus that are saved if the word is a single token."""


@dataclass(frozen=True)
class WordCounts:
    """The words and tokens of a corpus, without special tokens."""

    words: int
    tokens: int
    unknown: int
    """Number of words with an unknown piece; the tokenizer of BERT makes one unknown token of such a word."""
    by_pieces: dict[int, int]
    """Number of tokens in words of 1, 2, ... pieces, by the number of pieces."""
    divided: list[DividedWord]
    """The divided words that occur at least ``MIN_COUNT`` times, consist of letters and digits (at least one letter),
    and have no unknown piece. Ordered by ``saved``, descending, then by word."""

    def share(self, pieces: int) -> float:
        """Returns the fraction of the tokens that are in words of at least this number of pieces."""
        return sum(tokens for n, tokens in self.by_pieces.items() if n >= pieces) / max(self.tokens, 1)


def count_words(tokenizer: Any, blocks: Iterable[Sequence[str]], where: str) -> WordCounts:
    """Counts the words and tokens of a corpus. Time and memory for the tokenizer depend on the distinct words only."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.pre_tokenizer is None:
        raise InputError(
            f"{where}: the tokenizer does not divide a text into words first, so its words cannot be counted; name a "
            "model with another tokenizer, such as minilm"
        )
    # The words as the tokenizer passes them to its model, and as text.
    counts: Counter[str] = Counter()
    written: dict[str, str] = {}
    for chunk, count in Counter(part for block in blocks for text in block for part in text.split()).items():
        text = f" {chunk}" if backend.normalizer is None else backend.normalizer.normalize_str(f" {chunk}")
        for word, (start, end) in backend.pre_tokenizer.pre_tokenize_str(text):
            counts[word] += count
            written.setdefault(word, text[start:end].strip())
    known, vocabulary, unknown = tokenizer.get_added_vocab(), tokenizer.get_vocab(), tokenizer.unk_token
    forms: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    by_pieces: Counter[int] = Counter()
    strange = 0
    for word, count in counts.items():
        text = written[word]
        pieces = (text,) if text in known else tuple(token.value for token in backend.model.tokenize(word))
        by_pieces[len(pieces)] += count * len(pieces)
        if unknown is not None and unknown in pieces:
            strange += count
        elif text.isalnum() and any(letter.isalpha() for letter in text) and text not in vocabulary:
            forms.setdefault(text, []).append((count, pieces))
    divided = []
    for text, pairs in forms.items():
        total, saved = sum(count for count, _ in pairs), sum(count * (len(pieces) - 1) for count, pieces in pairs)
        if total >= MIN_COUNT and saved:
            divided.append(DividedWord(text, total, max(pairs)[1], saved))
    divided.sort(key=lambda entry: (-entry.saved, entry.word))
    tokens = by_pieces.total()
    return WordCounts(counts.total(), tokens, strange, dict(sorted(by_pieces.items())), divided)


# The number of texts, and of the first words of each, that are looked at.
TEXTS, WORDS = 500, 30
# all-MiniLM-L6-v2 cuts a word of English text into 1.1 to 1.6 pieces, of Python code into 1.7, and of German text into
# 2.2 to 2.6, which it ranks far below BM25 (docs/domain.md); of the pieces of Chinese text, 60 % are unknown.
MOST_PIECES, MOST_UNKNOWN = 2.0, 0.05


@dataclass(frozen=True)
class Readability:
    """Mean number of pieces of a word of some texts (an ideograph counts as a word), and share of unknown pieces."""

    pieces: float
    unknown: float

    @property
    def good(self) -> bool:
        """Whether the words are cut about as in the texts on which the model was trained."""
        return self.pieces <= MOST_PIECES and self.unknown <= MOST_UNKNOWN

    def warning(self, model: str) -> str:
        """Returns a sentence that says what is wrong and what to do; empty if nothing is."""
        if self.good:
            return ""
        unknown = f", {self.unknown:.0%} of them unknown," if self.unknown > MOST_UNKNOWN else ""
        return (
            f"{model} can hardly read these texts: it cuts a word into {self.pieces:.1f} pieces{unknown} on average, "
            "against 1.2 in English; use a multilingual model, such as intfloat/multilingual-e5-small, or search by "
            "words alone (cse search --hybrid --bm25-weight 1)"
        )


def readability(tokenizer: Any, texts: Iterable[str]) -> Readability:
    """Counts the pieces of the first words of the first texts."""
    split, words, rows = word_options(), 0, list[str]()
    for text in islice((text for text in texts if not is_blank(text)), TEXTS):
        joined, last = "", -1
        for start, end, _ in _core.tokenize(text, split)[:WORDS]:
            if any(map(str.isalnum, text[start:end])):
                # Ideographs stay together, because some tokenizers count a space as a piece.
                joined += text[start:end] if start == last else f" {text[start:end]}"
                words, last = words + 1, end
        if joined:
            rows.append(joined[1:])
    ids = _ids(tokenizer, rows)
    pieces = sum(map(len, ids))
    unknown: Any = getattr(tokenizer, "unk_token_id", None)
    token = getattr(getattr(tokenizer, "model", None), "unk_token", None)
    if unknown is None and token is not None:
        unknown = tokenizer.token_to_id(token)
    return Readability(pieces / max(words, 1), sum(row.count(unknown) for row in ids) / max(pieces, 1))


def share_read(encoder: Any, texts: Sequence[str]) -> tuple[float, int]:
    """Returns the mean share of the tokens of a text that an encoder reads, and its limit; 1 and 0 without a limit."""
    tokenizer, limit = encoder.tokenizer, getattr(unwrapped(encoder), "max_seq_length", None)
    if tokenizer is None or limit is None or not isfinite(limit):
        return 1.0, 0
    limit -= tokenizer.num_special_tokens_to_add()
    counts = (len(_ids(tokenizer, [text])[0]) for text in texts)  # one by one, since texts may be whole books
    shares = [min(1.0, limit / count) for count in counts if count]
    return sum(shares) / len(shares) if shares else 1.0, limit


def _ids(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Returns the numbers of the pieces of each text, without special tokens, truncation and padding."""
    if not texts:
        return []
    if callable(tokenizer):  # of the library transformers
        from .tokens import TOKENIZING

        options = {"add_special_tokens": False, "truncation": False, "padding": False, "verbose": False}
        with TOKENIZING:
            ids: list[list[int]] = tokenizer(list(texts), **options)["input_ids"]
        return ids
    if not hasattr(tokenizer, "encode"):
        return [[] for _ in texts]
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    return [[number for number, real in zip(e.ids, e.attention_mask, strict=True) if real] for e in encoded]
