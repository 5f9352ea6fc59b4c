"""Augmentations, edits of texts, and pairings of anchors and positives: their registry.

This module does not import NumPy, so that the command line, which lists the methods, starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import TextMethod

__all__ = ["AUGMENTATIONS", "LABELS_POSITIVE", "PAIRS_POSITIVE"]

PAIRS_POSITIVE = "labelled"
"""The default of ``--positive`` in a run with ``--pairs``."""

LABELS_POSITIVE = "same-label"
"""The method that ``--learn`` adds: positives of rows with a label; the others have ``--positive``'s."""

AUGMENTATIONS: Registry[type[TextMethod]] = Registry(
    "augmentation",
    "cse.augmentations",
    {
        "dropout": "cse.augment.pairings:Dropout",
        "halves": "cse.augment.pairings:Halves",
        "labelled": "cse.augment.pairings:Labelled",
        "parallel": "cse.augment.pairings:Parallel",
        "same-label": "cse.augment.same_label:SameLabel",
        "spans": "cse.augment.pairings:Spans",
        "uda": "cse.augment.una:UDA",
        "una": "cse.augment.una:UNA",
    },
    options={"una": "cse.augment.options:UNAOptions"},
)
"""Text methods by name: ``cse train --positive NAME`` and ``--negative NAME``."""
