"""Evaluations and their registry; intervals and tests for differences between encoders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..registry import Registry

if TYPE_CHECKING:
    from .base import Evaluation

__all__ = ["EVALUATIONS"]

EVALUATIONS: Registry[type[Evaluation]] = Registry(
    "evaluation",
    "cse.evaluations",
    {
        "sts": "cse.evaluation.sts:STS",
        "sts-dev": "cse.evaluation.sts:CleanDevelopment",
        "geometry": "cse.evaluation.geometry:Geometry",
        "halves": "cse.evaluation.geometry:SplitHalf",
        "labels": "cse.evaluation.labels:Labels",
        "retrieval": "cse.evaluation.retrieval:Retrieval",
    },
    options={
        "sts": "cse.evaluation.options:STSOptions",
        "sts-dev": "cse.evaluation.options:STSOptions",
        "halves": "cse.evaluation.options:SplitHalfOptions",
        "labels": "cse.evaluation.options:LabelsOptions",
        "retrieval": "cse.evaluation.options:RetrievalOptions",
    },
)
"""Evaluations by the name given to ``cse eval --suite`` and ``cse train --judge``."""
