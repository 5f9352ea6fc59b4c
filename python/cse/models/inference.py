"""Using a trained encoder: embeddings, similarities, search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from os import PathLike, fspath

import numpy as np
import numpy.typing as npt

from ..errors import InputError
from .device import pick_device
from .encoder import load_encoder
from .resolve import find_model

__all__ = ["Encoder"]

Vectors = npt.NDArray[np.float32]


class Encoder:
    """A sentence encoder, loaded from a run's folder, any Hugging Face encoder, or ``minilm``.

    ``pooler`` is needed only for a plain Hugging Face directory, which does not say how its tokens are pooled (default
    ``avg``, as in sentence-transformers; wrong for a model trained with [CLS] pooling).
    """

    def __init__(self, model: str | PathLike[str], *, pooler: str | None = None, device: str = "auto") -> None:
        source = find_model(fspath(model))
        self.plain = source.pooler is None and pooler is None
        """Whether the pooling is the default because neither the directory nor the caller named one."""
        self.device = pick_device(device)
        self.model = load_encoder(source, pooler or source.pooler or "avg").to(self.device).eval()

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return self.model.embedding_dim

    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> Vectors:
        """Embeddings ``(n, D)`` float32, one row per text."""
        if isinstance(texts, str):
            raise InputError("texts: a list of sentences was expected, not one string")
        whole = [_repaired(text) for text in texts]
        faulty = sum(new != old for new, old in zip(whole, texts, strict=True))
        if faulty:
            warnings.warn(f"{faulty} texts held lone surrogates, replaced by U+FFFD", stacklevel=2)
        return self.model.encode(whole, batch_size=batch_size, progress=progress)

    def similarity(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """Cosines, ``(len(left), len(right))``."""
        return _unit(self.encode(left)) @ _unit(self.encode(right)).T

    def search(self, queries: Sequence[str], corpus: Sequence[str], k: int = 10) -> list[list[tuple[int, float]]]:
        """For each query the k most similar texts of the corpus as (row, cosine), in descending order."""
        scores = self.similarity(queries, corpus)
        k = min(k, scores.shape[1])
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return [[(int(row), float(line[row])) for row in rows] for line, rows in zip(scores, best, strict=True)]


def _repaired(text: str) -> str:
    """Replaces lone surrogates, which are not valid Unicode and which tokenizers refuse."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    points: Vectors = vectors / np.maximum(norms, 1e-12)
    return points
