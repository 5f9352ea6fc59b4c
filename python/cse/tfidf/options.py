"""Options for tokenization and UNA sampling: the keyword arguments of ``TfidfIndex``, with their defaults."""

from __future__ import annotations

from typing import TypedDict, Unpack

from ..data.reading import complete
from ..errors import InputError

__all__ = ["DRAW", "DrawOptions", "WordOptions", "check_radius", "percentage", "word_options"]


class WordOptions(TypedDict, total=False):
    """Tokenization: what a term is."""

    tokenizer: str
    """``unicode`` (UAX #29; the default), ``whitespace`` (``str.split``), or ``treebank`` (NLTK's word tokenizer)."""
    lowercase: bool
    """Lower-case the terms; True."""
    nfkc: bool
    """Normalise the terms to Unicode form NFKC, which unifies compatibility forms; False."""


class DrawOptions(TypedDict, total=False):
    """UNA sampling. A negative is a function of these options, the text and its row number."""

    seed: int
    epoch: int
    copy: int
    """Which of several negatives of the same row. Seed, epoch and copy default to 0 and hold up to 64 bits."""
    beta: float
    """Average replacement probability over the words of a sentence, before probabilities are cut at 1; 0.5."""
    radius: int | str | None
    """Half width of the window in ranks, or a percentage of the vocabulary (``"5%"``). None: min(4000, V/100), at
    least 1."""
    surface: str | None
    """``keep``: only replaced words change. ``plain``: lower-cased terms joined by spaces, as published. None:
    ``keep``, or ``plain`` with the treebank tokenizer."""
    replace_which: str
    """Which words are replaced: ``tfidf`` (UNA), or ``random``, each with probability beta (UNA, Table 2)."""
    replace_with: str
    """What replaces them: ``radius`` (UNA), or ``random``, any other term with equal probability (UNA, Table 2). With
    both at ``random``, sentences of fewer than three words are unchanged and no replacement is forced."""
    mode: str
    """``negative``: words of high TF-IDF are replaced (UNA). ``positive``: words of low TF-IDF are (UDA)."""


_WORDS: WordOptions = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}
DRAW: DrawOptions = {
    "seed": 0,
    "epoch": 0,
    "copy": 0,
    "beta": 0.5,
    "radius": None,
    "surface": None,
    "replace_which": "tfidf",
    "replace_with": "radius",
    "mode": "negative",
}


def word_options(**words: Unpack[WordOptions]) -> WordOptions:
    """All tokenization options."""
    options: WordOptions = complete(_WORDS, words)
    return options


def check_radius(radius: int | str | None) -> int | str | None:
    """Returns the radius; ``InputError`` unless it is None, a percentage, or a number of ranks of at least 1."""
    if radius is not None and percentage(radius) is None and not 1 <= int(radius) < 2**63:
        raise InputError(f"--radius: {radius} was given, and it must be at least 1 and fit into 63 bits")
    return radius


def percentage(radius: int | str) -> float | None:
    """The percentage that a radius names, or None if it is a number of ranks; ``InputError`` if it is neither."""
    text = str(radius).strip()
    try:
        if not text.endswith("%"):
            int(text)
            return None
        share = float(text[:-1])
    except ValueError:
        raise InputError(f"--radius: {radius!r} is neither a number of ranks nor a percentage like 5%") from None
    if not 0 < share <= 100:
        raise InputError(f"--radius: {radius} was given, and a percentage must be above 0 and at most 100")
    return share
