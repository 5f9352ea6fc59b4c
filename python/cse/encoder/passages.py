"""Cuts long texts into passages with a limited number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from tokenizers import Tokenizer

import cse._core as _core

from .._core import is_blank
from ..errors import InputError
from ..tfidf.options import word_options
from .base import unwrapped
from .encoder import Encoder

# Maximum number of tokens in a passage for bags of tokens, of words without a tokenizer, and of tokens in any case.
DEFAULT, LONGEST = 256, 8192
# Consecutive passages share about 1/OVERLAP of the maximum number of tokens.
OVERLAP = 8

Span = tuple[int, int]


class Cutter:
    """Cuts texts into passages of at most ``tokens`` tokens, by default as many as the encoder reads.

    They begin and end at white space where possible. Encoders without a tokenizer get ``DEFAULT`` words (UAX #29).
    """

    def __init__(self, encoder: Encoder, tokens: int | None = None) -> None:
        model: Any = unwrapped(encoder)
        if (other := getattr(model, "other", None)) is not None:
            model = getattr(other, "base", other)  # of whitening, or of an ONNX file
        self._tokenizer: Any = None
        longest = None
        if (tokenizer := getattr(model, "tokenizer", None)) is not None:
            backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
            if not hasattr(backend, "to_str"):
                raise InputError("--passages: the tokenizer of the model gives no positions of tokens; omit --passages")
            self._tokenizer = Tokenizer.from_str(backend.to_str())  # a copy, with settings of its own
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            limit = getattr(model, "max_length", None) or getattr(model, "max_seq_length", None)
            if limit is not None and isfinite(limit):
                longest = min(limit, LONGEST) - self._tokenizer.num_special_tokens_to_add(False)
        self.tokens = tokens if tokens is not None else longest or DEFAULT
        if self.tokens < 8 or (longest is not None and self.tokens > longest):
            most = "" if longest is None else f" and at most {longest}, the number of tokens that the model reads"
            raise InputError(f"--passages must be at least 8{most}, got {self.tokens}")

    def __call__(self, texts: Sequence[str]) -> list[list[Span]]:
        """Returns the passages of each text as (start, end) character positions; a blank text has none."""
        if self._tokenizer is None:
            spans = [[(start, end) for start, end, _ in _core.tokenize(text, word_options())] for text in texts]
        else:
            encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
            spans = [[(start, end) for start, end in encoding.offsets if end > start] for encoding in encodings]
        return [windows(text, tokens, self.tokens) for text, tokens in zip(texts, spans, strict=True)]


def windows(text: str, tokens: Sequence[Span], size: int) -> list[Span]:
    """Returns the passages of a text, each of at most ``size`` of its tokens; both are given as character spans."""
    if is_blank(text):
        return []
    if len(tokens) <= size:
        return [(0, len(text))]

    def between_words(number: int, least: int) -> int:
        """Returns the last index from ``least`` to ``number`` whose token begins a word; ``number`` if none does."""
        for position in range(number, least - 1, -1):
            start = tokens[position][0]
            if start == 0 or text[start].isspace() or text[start - 1].isspace():
                return position
        return number

    spans = []
    first = 0
    while True:
        last = min(first + size, len(tokens))
        if last < len(tokens):
            last = between_words(last, first + size // 2)
        start = 0 if first == 0 else tokens[first][0]
        end = len(text) if last == len(tokens) else tokens[last - 1][1]
        spans.append((start, end))
        if last == len(tokens):
            return spans
        first = between_words(last - size // OVERLAP, first + 1)
