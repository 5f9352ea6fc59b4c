"""Options for tokenization and UNA sampling: of commands, of ``TfidfIndex``, of methods and of the Rust core."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, Unpack, cast

from annotated_types import Ge, Le

from ..errors import InputError, did_you_mean
from ..options import Opt, Seed, options_of

if TYPE_CHECKING:
    from .pieces import Pieces

Tfidf = Annotated[str, Opt("Folder of the TF-IDF index.", "DIR")]
MinDf = Annotated[
    int, Ge(0), Le(2**40), Opt("Sample replacements only from terms that occur in at least N sentences.", "N")
]
MaxTerms = Annotated[int | None, Ge(1), Le(2**32), Opt("Sample replacements only from the N most frequent terms.", "N")]
Beta = Annotated[
    float,
    Ge(0),
    Le(1),
    Opt(
        "Mean replacement probability over the words of a sentence, 0 to 1, before probabilities are clipped at 1. "
        "Even with 0, at least one word is replaced, unless both steps are random; even with 1, not all words are.",
        "BETA",
    ),
]
Radius = Annotated[
    int | str | None,
    Opt(
        "Largest difference in TF-IDF rank between a word and its replacement: N, or P% of the V terms indexed.",
        "N|P%",
        "min(4000, V/100), at least 1",
    ),
]
ReplaceWhich = Annotated[
    Literal["tfidf", "random"],
    Opt("How the words to replace are selected: by TF-IDF or at random (with both steps random, none is forced)."),
]
ReplaceWith = Annotated[
    Literal["radius", "random"], Opt("Where replacements are sampled from: nearby ranks or all terms.")
]
Surface = Annotated[
    Literal["keep", "plain"] | None,
    Opt(
        "Keep the original text between terms, or join terms with spaces.",
        default="keep; plain for a treebank index",
    ),
]
Epoch = Annotated[
    int, Ge(0), Le(2**64 - 1), Opt("Epoch of training whose negatives are made; each epoch has others.", "N")
]
Mode = Annotated[
    Literal["negative", "positive"],
    Opt("Which words to replace: those with high TF-IDF (negative, UNA) or low TF-IDF (positive, UDA)."),
]
TokenizerName = Literal["unicode", "whitespace", "treebank", "wordpieces"]


@dataclass(frozen=True)
class Words:
    """How text is split into terms.

    ``unicode`` splits by UAX #29, ``whitespace`` as ``str.split``, ``treebank`` as NLTK's word tokenizer, and
    ``wordpieces`` into the pieces of a model's WordPiece tokenizer, for text without spaces between words.
    """

    tokenizer: Annotated[TokenizerName, Opt("How text is split into terms.")] = "unicode"
    lowercase: Annotated[bool, Opt("Lower-case the terms.")] = True
    nfkc: Annotated[bool, Opt("Unify compatibility forms (Unicode NFKC).", flag="--nfkc/--no-nfkc")] = False


@dataclass(frozen=True)
class Sampling:
    """How replacements are sampled."""

    beta: Beta = 0.5
    radius: Radius = None
    replace_which: ReplaceWhich = "tfidf"
    replace_with: ReplaceWith = "radius"
    surface: Surface = None
    seed: Seed = 0


class WordOptions(TypedDict, total=False):
    """``Words`` as keyword arguments, and the tokenizer of a model for ``wordpieces``; the defaults are those there."""

    tokenizer: str
    lowercase: bool
    nfkc: bool
    pieces: Pieces | None


class DrawOptions(TypedDict, total=False):
    """``Sampling`` as keyword arguments, and the further ones that a negative depends on.

    ``beta`` is the mean replacement probability before clipping at 1. ``radius`` is the largest difference in TF-IDF
    rank, as a number or a percentage (``"5%"``). ``surface`` is ``keep`` (only replaced words change) or ``plain``
    (lower-cased terms joined by spaces, as published). ``copy`` is the number of a negative of its row.
    With ``replace_which`` and ``replace_with`` ``random`` (UNA, Table 2), a text may stay unchanged.
    """

    beta: float
    radius: int | str | None
    replace_which: str
    replace_with: str
    surface: str | None
    seed: int
    epoch: int
    copy: int
    mode: str


@dataclass(frozen=True)
class _Drawing(Sampling):
    """The options of ``DrawOptions``, with their defaults."""

    epoch: Epoch = 0
    copy: Annotated[int, Ge(0), Le(2**64 - 1), Opt("Number of a negative of its row.")] = 0
    mode: Mode = "negative"


def draw_options(**drawing: Unpack[DrawOptions]) -> DrawOptions:
    """Returns the options with their defaults; raises ``InputError`` for an unknown one, or a value that is invalid."""
    known = {option.name: option for option in options_of(_Drawing)}
    for name in drawing:
        if name not in known:
            raise InputError(f"unknown option {name!r}{did_you_mean(name, known)}; the options are {', '.join(known)}")
    values = {name: known[name].check(value, f"--{name.replace('_', '-')}") for name, value in drawing.items()}
    return cast(DrawOptions, asdict(_Drawing(**values)))


def word_options(
    tokenizer: str = "unicode", lowercase: bool = True, nfkc: bool = False, pieces: Pieces | None = None
) -> WordOptions:
    if tokenizer != "wordpieces" and pieces is not None:
        raise InputError("--model belongs to --tokenizer wordpieces; omit --model, or add --tokenizer wordpieces")
    if tokenizer == "wordpieces" and (nfkc or not lowercase):
        flag = "--nfkc" if nfkc else "--no-lowercase"
        raise InputError(f"{flag} has no effect with --tokenizer wordpieces, which splits text as the model does")
    return {"tokenizer": tokenizer, "lowercase": lowercase, "nfkc": nfkc, "pieces": pieces}


def check_radius(radius: int | str | None, terms: int = 0) -> int | None:
    """Returns a radius in ranks, of an index with this number of terms; a percentage is rounded to at least 1 rank."""
    if radius is None:
        return None
    text = str(radius).strip()
    percent = text.endswith("%")
    try:
        number = float(text[:-1]) if percent else int(text)
    except ValueError:
        number = 0
    if not 0 < number <= (100 if percent else 2**63 - 1):
        raise InputError(f"--radius must be a number of ranks, at least 1, or a percentage like 5%, got {radius!r}")
    return max(1, round(terms * number / 100)) if percent else int(number)
