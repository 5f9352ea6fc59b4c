"""``Fusion``: how the rankings by vectors and by BM25 are combined. The declarations are also options of commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from ..errors import InputError, shown
from ..options import Opt, options_of

Bm25Weight = Annotated[
    float | None,
    Ge(0),
    Le(1),
    Opt(
        "Weight of BM25, 0 to 1.",
        "W",
        "0.5; 0.8 if the model reads less than half of a row, on average, or can hardly read it; 0.3 for code",
        needs="hybrid",
    ),
]
Language = Annotated[
    str,
    Opt(
        "Language whose words BM25 stems, such as english or german; none: no stemming.",
        "NAME",
        "guessed from the texts",
        names="cse.search.bm25:language_names",
        needs="hybrid",
    ),
]
StopWords = Annotated[
    Literal["language", "english", "none"],
    Opt("Words that BM25 leaves out.", default="the stop words of the language", needs="hybrid"),
]
Bm25Tokenizer = Annotated[
    Literal["auto", "unicode", "code", "wordpieces"],
    Opt(
        "Terms of BM25: words, parts of identifiers, or pieces of the model's WordPiece tokenizer.",
        default="code if the texts look like it, else unicode",
        needs="hybrid",
    ),
]


@dataclass(frozen=True)
class Fusion:
    """How the rankings by vectors and by BM25 are combined. Raises ``InputError`` for a value that is out of range."""

    bm25_weight: Bm25Weight = None
    language: Language = "auto"
    stop_words: StopWords = "language"
    bm25_tokenizer: Bm25Tokenizer = "auto"

    def __post_init__(self) -> None:
        for option in options_of(Fusion):
            option.check(getattr(self, option.name))

    @staticmethod
    def of(hybrid: bool | Fusion | None) -> Fusion | None:
        """Returns what the argument ``hybrid`` stands for: True for the defaults, False and None for no BM25."""
        if isinstance(hybrid, Fusion):
            return hybrid
        if hybrid is None or isinstance(hybrid, bool):
            return Fusion() if hybrid else None
        raise InputError(f"hybrid: must be True, False or a Fusion, got {shown(hybrid)}; use Fusion(bm25_weight=...)")
