"""What may be chosen about words, reading and drawing, with its defaults: the keyword arguments of ``TfidfIndex``."""

from __future__ import annotations

from typing import TypedDict, TypeVar, Unpack, cast

from ..errors import InputError

__all__ = ["DrawOptions", "ReadOptions", "WordOptions", "percentage", "reading_options", "word_options"]

MAX_LINE_BYTES = 1 << 20


class WordOptions(TypedDict, total=False):
    """What a term is."""

    tokenizer: str
    """``unicode`` (UAX #29; the default), ``whitespace`` (``str.split``), or ``treebank`` (NLTK's word tokenizer)."""
    lowercase: bool
    """Lower-case terms; True."""
    nfkc: bool
    """Put terms into Unicode's form NFKC, so that compatibility forms are one; False."""


class ReadOptions(TypedDict, total=False):
    """How files are read."""

    encoding_errors: str
    """Bytes that are not UTF-8: ``strict`` refuses them (the default), ``replace`` counts them."""
    max_line_bytes: int
    """A longer row is refused; 2**20."""
    threads: int
    """0 uses all cores, and is the default; no result depends on it."""


class DrawOptions(TypedDict, total=False):
    """How UNA draws. A negative is a function of these, the text and its row number alone."""

    seed: int
    epoch: int
    copy: int
    """Which of a row's several negatives; these three are 0 unless given, and hold up to 64 bits."""
    beta: float
    """About the share of words replaced, 0 to 1; 0.5."""
    radius: int | str | None
    """Ranks to either side, or a percentage of the vocabulary (``"5%"``); None is min(4000, V/100), at least 1."""
    surface: str | None
    """``keep``: only replaced words change; ``plain``: terms joined by spaces, as published. None is ``keep``, but
    ``plain`` with the treebank tokenizer."""
    step2: str
    """Which words: ``tfidf`` (UNA), or ``random``, each with probability beta (its Table 2)."""
    step3: str
    """By what: ``radius`` (UNA), or ``random``, any other term evenly (Table 2). With both at random, sentences of
    under three words stay and nothing is forced."""
    mode: str
    """``negative``: weighty words go (UNA). ``positive``: light ones do (UDA), so that the meaning stays."""


Options = TypeVar("Options", WordOptions, ReadOptions, DrawOptions)

_WORDS: WordOptions = {"tokenizer": "unicode", "lowercase": True, "nfkc": False}
_READ: ReadOptions = {"encoding_errors": "strict", "max_line_bytes": MAX_LINE_BYTES, "threads": 0}
DRAW: DrawOptions = {
    "seed": 0,
    "epoch": 0,
    "copy": 0,
    "beta": 0.5,
    "radius": None,
    "surface": None,
    "step2": "tfidf",
    "step3": "radius",
    "mode": "negative",
}


def word_options(**words: Unpack[WordOptions]) -> WordOptions:
    """All options of words."""
    return complete(_WORDS, words)


def reading_options(**reading: Unpack[ReadOptions]) -> ReadOptions:
    """All options of reading; ``InputError`` for a number below 0 or above what 63 bits hold."""
    options = complete(_READ, reading)
    for name, number in (("threads", options["threads"]), ("max_line_bytes", options["max_line_bytes"])):
        if not 0 <= number < 2**63:
            raise InputError(f"--{name.replace('_', '-')}: {number} was given, and it must be 0 or more")
    return options


def complete(defaults: Options, given: Options) -> Options:
    unknown = set(given) - set(defaults)
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; there are: {', '.join(defaults)}")
    return cast(Options, {**defaults, **given})


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
