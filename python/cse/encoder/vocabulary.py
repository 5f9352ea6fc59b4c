"""Counts the words of a corpus that the tokenizer of a model divides into pieces.

The words of a text are what the tokenizer passes to its model: the text is normalised (for example to lower case), and
then divided at white space and punctuation. White space always separates words, so it is enough to count the parts of
the texts between white space, and to pass each distinct part to the tokenizer once. A tokenizer that marks the space
before a word, such as that of RoBERTa, is given a space before each part; for the first word of a text, whose number of
pieces may differ without the space, the counts are then approximate. The other counts are exact.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

MIN_COUNT = 5
"""Minimum number of occurrences of a word that is listed."""


@dataclass(frozen=True)
class DividedWord:
    """A word that the tokenizer divides into two or more pieces."""

    word: str
    """The word as the tokenizer normalises it."""
    count: int
    """Number of occurrences in the corpus."""
    pieces: tuple[str, ...]
    """Its pieces; of several forms (with and without a mark of the space before it), those of the most frequent one."""
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
    """Counts the words and tokens of a corpus. Time and memory for the tokenizer depend on the distinct words only.

    Args:
        tokenizer: A Hugging Face tokenizer.
        blocks: The texts of the corpus, in blocks.
        where: Beginning of the error message, such as ``--model minilm``.

    Raises:
        InputError: If the tokenizer does not divide texts into words before it divides words into pieces.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.pre_tokenizer is None:
        raise InputError(
            f"{where}: the tokenizer does not divide a text into words first, so its words cannot be counted; name a "
            "model with another tokenizer, such as minilm"
        )
    chunks: Counter[str] = Counter()
    for block in blocks:
        for text in block:
            chunks.update(text.split())
    counts, written = _words(backend, chunks)
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


def _words(backend: Any, chunks: Counter[str]) -> tuple[Counter[str], dict[str, str]]:
    """Returns the counts of the words as the tokenizer passes them to its model, and these words as text."""
    normalize = (lambda text: text) if backend.normalizer is None else backend.normalizer.normalize_str
    split = backend.pre_tokenizer.pre_tokenize_str
    counts: Counter[str] = Counter()
    written: dict[str, str] = {}
    for chunk, count in chunks.items():
        text = normalize(" " + chunk)
        for word, (start, end) in split(text):
            counts[word] += count
            if word not in written:
                written[word] = text[start:end].strip()
    return counts, written
