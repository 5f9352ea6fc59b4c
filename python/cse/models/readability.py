"""Whether a model can read a text, judged by how its tokenizer cuts the words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .. import _core
from ..tfidf.options import word_options

# The number of texts, and of the first words of each, that are looked at.
TEXTS, WORDS = 500, 30
# all-MiniLM-L6-v2 cuts a word of English text into 1.1 to 1.4 pieces, of Python code into 1.7, and of German text into
# 2.2. It finds no vector for text in languages whose words it cuts further, or does not know.
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
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    unknown_token = getattr(tokenizer, "unk_token", None) or getattr(getattr(backend, "model", None), "unk_token", None)
    split, words, pieces, unknown = word_options(), 0, 0, 0
    for text in islice((text for text in texts if text.strip()), TEXTS):
        spans = _core.tokenize(text, split)[:WORDS]
        kept = [text[start:end] for start, end, _ in spans if any(map(str.isalnum, text[start:end]))]
        if kept and hasattr(backend, "encode"):
            encoded = backend.encode(" ".join(kept), add_special_tokens=False)
            tokens = [
                token for token, real in zip(encoded.tokens, encoded.attention_mask, strict=True) if real
            ]  # not padding
            words, pieces = words + len(kept), pieces + len(tokens)
            unknown += tokens.count(unknown_token)
    return Readability(pieces / max(words, 1), unknown / max(pieces, 1))
