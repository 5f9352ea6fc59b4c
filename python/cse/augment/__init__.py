"""Augmentations: edits of texts, and pairings of anchors and positives; their registry, and the options of UNA.

This module imports neither pydantic nor NumPy, so that the command line, which lists the options, starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le

from ..registry import Note, OnlyIf, Registry
from ..tfidf.options import DrawOptions, check_radius

if TYPE_CHECKING:
    from .base import TextMethod

__all__ = ["AUGMENTATIONS", "DEFAULT_POSITIVE", "PAIRS_POSITIVE"]


@dataclass(frozen=True)
class UNAOptions:
    """Synthetic hard negatives from the TF-IDF index (UNA).

    The defaults are those of the paper, except for ``radius``, ``surface`` and ``tokenizer``.
    """

    every: Annotated[int, Ge(0), Note("use UNA at steps 0, N, 2N, ...; 0: never", "--una-every", "N")] = 5
    use_as: Annotated[
        Literal["pairs", "hard-negatives"],
        Note("add negatives as further anchor-positive pairs (as published), or as hard negatives only", "--una-as"),
    ] = "pairs"
    beta: Annotated[
        float, Ge(0), Le(1), Note("mean probability that a word is replaced, before clipping at 1", "--beta", "BETA")
    ] = 0.5
    radius: Annotated[
        int | str | None,
        Note(
            "largest difference in TF-IDF rank between a word and its replacement: N, or P% of the V terms indexed",
            "--radius",
            "N|P%",
            default="min(4000, V/100)",
        ),
        OnlyIf("replace_with", ("radius",), "--replace-with radius"),
    ] = None
    surface: Annotated[
        Literal["keep", "plain"] | None,
        Note(
            "keep the original text between terms, or join terms with spaces",
            "--surface",
            default="keep; treebank: plain",
        ),
    ] = None
    replace_which: Annotated[
        Literal["tfidf", "random"], Note("how the words to replace are selected", "--replace-which")
    ] = "tfidf"
    replace_with: Annotated[Literal["radius", "random"], Note("how replacements are selected", "--replace-with")] = (
        "radius"
    )
    tokenizer: Annotated[
        Literal["unicode", "whitespace", "treebank", "wordpieces"] | None,
        Note("required tokenizer of the index; None: any"),
    ] = None

    def __post_init__(self) -> None:
        """Raises ``InputError`` for an invalid radius."""
        check_radius(self.radius)

    def drawing(self) -> DrawOptions:
        """Returns the sampling options as keyword arguments of ``TfidfIndex.augment``."""
        return {
            "beta": self.beta,
            "radius": self.radius,
            "surface": self.surface,
            "replace_which": self.replace_which,
            "replace_with": self.replace_with,
        }


DEFAULT_POSITIVE = "dropout"
PAIRS_POSITIVE = "labelled"
"""The default of ``--positive`` in a run with ``--pairs``."""

AUGMENTATIONS: Registry[type[TextMethod]] = Registry(
    "augmentation",
    "cse.augmentations",
    {
        "aeda": "cse.augment.eda:AEDA",
        "crop": "cse.augment.words:Crop",
        "delete": "cse.augment.words:Delete",
        "dropout": "cse.augment.pairings:Dropout",
        "eda-delete": "cse.augment.eda:DeleteWords",
        "eda-insert": "cse.augment.eda:InsertSynonyms",
        "eda-swap": "cse.augment.eda:SwapWords",
        "eda-synonym": "cse.augment.eda:ReplaceBySynonyms",
        "halves": "cse.augment.pairings:Halves",
        "labelled": "cse.augment.pairings:Labelled",
        "masked-span": "cse.augment.words:MaskedSpan",
        "next-sentence": "cse.augment.pairings:NextSentence",
        "one-of": "cse.augment.pairings:OneOf",
        "parallel": "cse.augment.pairings:Parallel",
        "repetition": "cse.augment.words:Repetition",
        "spans": "cse.augment.pairings:Spans",
        "substitution": "cse.augment.words:Substitution",
        "uda": "cse.augment.una:UDA",
        "una": "cse.augment.una:UNA",
    },
    options={"una": "cse.augment:UNAOptions"},
)
"""Text methods by name: ``cse train --positive NAME`` and ``--negative NAME``."""
