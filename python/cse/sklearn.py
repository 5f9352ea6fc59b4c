"""The TF-IDF index and sentence encoders as scikit-learn transformers (extra ``cse[sklearn]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .tfidf.sklearn import TfidfVectorizer

if TYPE_CHECKING:
    from .models.sklearn import Encoder

__all__ = ["Encoder", "TfidfVectorizer"]


def __getattr__(name: str) -> Any:
    if name != "Encoder":
        raise AttributeError(f"module 'cse.sklearn' has no attribute {name!r}")
    from .models.sklearn import Encoder  # imports torch

    return Encoder
