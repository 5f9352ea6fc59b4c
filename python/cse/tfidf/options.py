"""Options for tokenization and UNA sampling, which methods of ``TfidfIndex`` take as keyword arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict, Unpack

from ..data.readers import complete
from ..errors import InputError

if TYPE_CHECKING:
    from .pieces import Pieces


class WordOptions(TypedDict, total=False):
    """Options for tokenization."""

    tokenizer: str
    """``unicode`` (UAX #29; default), ``whitespace`` (``str.split``), ``treebank`` (NLTK's word tokenizer), or
    ``wordpieces`` (the pieces of a model's WordPiece tokenizer, for text without spaces between words)."""
    lowercase: bool
    """Convert terms to lower case. Default: True."""
    nfkc: bool
    """Normalise terms to Unicode NFKC, which unifies compatibility forms. Default: False."""
    pieces: Pieces | None
    """With ``wordpieces``: the tokenizer of the model, as a ``cse.tfidf.pieces.Pieces``. Default: None."""


class DrawOptions(TypedDict, total=False):
    """Options for UNA sampling. A negative depends only on these options, the index, the text and its row number."""

    seed: int
    epoch: int
    copy: int
    """Index of the negative among those of its row, from 0. ``seed``, ``epoch`` and ``copy`` are in [0, 2**64),
    and are 0 by default."""
    beta: float
    """Mean replacement probability over the words of a sentence, before the probabilities are clipped at 1. If none
    reaches 1, the largest is set to 1. Default: 0.5."""
    radius: int | str | None
    """Largest difference in TF-IDF rank between a word and its replacement, as a number or as a percentage of the V
    terms in the index (``"5%"``). None (default): min(4000, V/100), at least 1."""
    surface: str | None
    """``keep``: only replaced words change. ``plain``: lower-cased terms joined by spaces, as published. None
    (default): ``plain`` with the treebank tokenizer, else ``keep``."""
    replace_which: str
    """Selection of the words to replace. ``tfidf`` (default): by TF-IDF (UNA). ``random``: each word with probability
    beta (UNA, Table 2)."""
    replace_with: str
    """Selection of the replacements. ``radius`` (default): within the radius (UNA). ``random``: any other term with
    equal probability (UNA, Table 2). If ``replace_which`` is also ``random``, it can happen that no word is
    replaced, and sentences of fewer than three words are left unchanged."""
    mode: str
    """``negative`` (default): words with high TF-IDF are replaced (UNA). ``positive``: words with low TF-IDF (UDA)."""


_WORDS: WordOptions = {"tokenizer": "unicode", "lowercase": True, "nfkc": False, "pieces": None}
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
    """Returns the given options, with the defaults for missing ones.

    Raises:
        InputError: If an option does not suit the tokenizer.
        TypeError: For an unknown option.
    """
    options: WordOptions = complete(_WORDS, words)
    if options["tokenizer"] != "wordpieces":
        if options["pieces"] is not None:
            raise InputError("--model: belongs to --tokenizer wordpieces; leave it out, or add --tokenizer wordpieces")
    elif options["pieces"] is None:
        raise InputError("--tokenizer wordpieces: needs the tokenizer of a model; name the model with --model")
    elif not options["lowercase"] or options["nfkc"]:
        flag = "--nfkc" if options["nfkc"] else "--no-lowercase"
        raise InputError(f"{flag}: has no effect with --tokenizer wordpieces, which splits text as the model does")
    return options


def check_radius(radius: int | str | None) -> int | str | None:
    """Returns the radius; raises ``InputError`` unless it is None, a percentage, or an integer of at least 1."""
    if radius is not None and percentage(radius) is None and not 1 <= int(radius) < 2**63:
        raise InputError(f"--radius: must be at least 1 and fit into 63 bits, got {radius}")
    return radius


def percentage(radius: int | str) -> float | None:
    """Returns the percentage of a radius like ``"5%"``, None for a number of ranks; raises ``InputError`` otherwise."""
    text = str(radius).strip()
    try:
        if not text.endswith("%"):
            int(text)
            return None
        share = float(text[:-1])
    except ValueError:
        raise InputError(f"--radius: {radius!r} is neither a number of ranks nor a percentage like 5%") from None
    if not 0 < share <= 100:
        raise InputError(f"--radius: a percentage must be above 0 and at most 100, got {radius}")
    return share
