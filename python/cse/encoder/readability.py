"""Whether a model can read a text, judged by how its tokenizer cuts the words, and how much it reads of a long one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

from .. import _core
from ..tfidf.options import word_options
from .base import unwrapped

# The number of texts, and of the first words of each, that are looked at.
TEXTS, WORDS = 500, 30
# all-MiniLM-L6-v2 cuts a word of English abstracts and questions into 1.1 to 1.3 pieces, of tweets into 1.6, of Python
# code into 1.7, and of German text into 2.2 to 2.6; of the pieces of Chinese text, 60 % are unknown. Its vectors rank
# the German and Chinese collections far below BM25 (docs/domain.md).
MOST_PIECES, MOST_UNKNOWN = 2.0, 0.05


@dataclass(frozen=True)
class Readability:
    """How a tokenizer cuts the words of some texts."""

    pieces: float
    """Mean number of pieces of a word; each ideograph counts as a word."""
    unknown: float
    """Share of unknown pieces."""

    @property
    def good(self) -> bool:
        """Whether the words are cut about as those of the texts on which the model was trained."""
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
    """Counts the pieces of the first words of the first texts.

    Args:
        tokenizer: A tokenizer of the library transformers or tokenizers.
        texts: The texts; blank ones are skipped.
    """
    split, words, rows = word_options(), 0, list[str]()
    for text in islice((text for text in texts if text.strip()), TEXTS):
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
    unknown = _unknown(tokenizer)
    return Readability(pieces / max(words, 1), sum(row.count(unknown) for row in ids) / max(pieces, 1))


def share_read(encoder: Any, texts: Sequence[str]) -> tuple[float, int]:
    """Returns the share of the tokens of a text that an encoder reads, on average, and the most that it reads of one.

    The mean is over the texts with tokens, so that a few long ones among many short ones hardly change it. The share is
    1, and the number 0, if the encoder has no limit.
    """
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


def _unknown(tokenizer: Any) -> int:
    """Returns the number of the unknown token; -1 if there is none."""
    number = getattr(tokenizer, "unk_token_id", None)
    token = getattr(getattr(tokenizer, "model", None), "unk_token", None)
    if number is None and token is not None:
        number = tokenizer.token_to_id(token)
    return -1 if number is None else int(number)
