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
        "aeda": "cse.augment.aeda:AEDA",
        "crop": "cse.augment.crop:Crop",
        "delete": "cse.augment.delete:Delete",
        "dropout": "cse.augment.dropout:Dropout",
        "eda-delete": "cse.augment.eda:DeleteWords",
        "eda-insert": "cse.augment.eda:InsertSynonyms",
        "eda-swap": "cse.augment.eda:SwapWords",
        "eda-synonym": "cse.augment.eda:ReplaceBySynonyms",
        "halves": "cse.augment.halves:Halves",
        "labelled": "cse.augment.labelled:Labelled",
        "masked-span": "cse.augment.masked_span:MaskedSpan",
        "next-sentence": "cse.augment.neighbours:NextSentence",
        "one-of": "cse.augment.one_of:OneOf",
        "parallel": "cse.augment.neighbours:Parallel",
        "repetition": "cse.augment.repetition:Repetition",
        "spans": "cse.augment.spans:Spans",
        "substitution": "cse.augment.substitution:Substitution",
        "uda": "cse.augment.uda:UDA",
        "una": "cse.augment.una:UNA",
    },
    options={"una": "cse.augment.una_options:UNAOptions"},
)
"""Text methods by name: ``cse train --positive NAME`` and ``--negative NAME``."""
