"""Augmentations: edits of texts, and pairings of anchors and positives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import TextMethod

__all__ = ["AUGMENTATIONS", "DEFAULT_POSITIVE", "PAIRS_POSITIVE"]

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
    options={"una": "cse.augment.options:UNAOptions"},
)
"""Text methods by name: ``cse train --positive NAME`` and ``--negative NAME``."""
