"""Using a trained encoder: embeddings, similarities, search."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from numbers import Integral
from os import PathLike, fspath

import numpy as np
import numpy.typing as npt

from ..errors import InputError, check_texts
from .device import pick_device
from .encoder import load_encoder
from .pooling import POOLERS
from .resolve import find_model

__all__ = ["Encoder"]

Vectors = npt.NDArray[np.float32]


class Encoder:
    """A sentence encoder, loaded from a run's folder, any Hugging Face encoder, or ``minilm``.

    ``pooler`` is needed only for a plain Hugging Face directory, which does not say how its tokens are pooled (default
    ``avg``, as in sentence-transformers; wrong for a model trained with [CLS] pooling).
    """

    def __init__(self, model: str | PathLike[str], *, pooler: str | None = None, device: str = "auto") -> None:
        if pooler is not None and pooler not in POOLERS:
            raise InputError(f"--pooler: {pooler!r} is unknown; choose one of {', '.join(POOLERS)}")
        source = find_model(fspath(model))
        self.plain = source.pooler is None and pooler is None
        """Whether the pooling is the default because neither the directory nor the caller named one."""
        self.device = pick_device(device)
        used = pooler or source.pooler or "avg"
        self.model = load_encoder(source, used, for_inference=True).to(self.device).eval()
        self.pooling = f"{used}: {POOLERS[used]}"
        """The pooler, and what it computes here."""
        if used == "cls":
            trained = self.model.use_trained_pooler
            self.pooling = f"cls: {'the trained pooler' if trained else 'the first token, without a trained pooler'}"

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return self.model.embedding_dim

    def encode(
        self,
        texts: Iterable[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> Vectors:
        """Embeddings of texts.

        Args:
            texts: Any iterable of strings, also a NumPy array. A blank text gives a row of zeros, as in ``cse encode``.
            batch_size: Texts per forward pass, at least 1.
            progress: Called with the number of texts encoded since its last call.

        Returns:
            ``(n, D)`` float32, one row per text.

        Raises:
            InputError: For one string in place of several, an element that is not a string, or a batch size below 1.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
            raise InputError(f"batch_size: {batch_size!r} was given, and it must be an integer of at least 1")
        given = check_texts(texts)
        whole = [_repaired(text) for text in given]
        faulty = sum(new != old for new, old in zip(whole, given, strict=True))
        if faulty:
            warnings.warn(f"{faulty} texts held lone surrogates, replaced by U+FFFD", stacklevel=2)
        filled = [row for row, text in enumerate(whole) if text.strip()]
        if len(filled) == len(whole):
            return self.model.encode(whole, batch_size=int(batch_size), progress=progress)
        vectors = np.zeros((len(whole), self.embedding_dim), dtype=np.float32)
        if filled:
            vectors[filled] = self.model.encode(
                [whole[row] for row in filled], batch_size=int(batch_size), progress=progress
            )
        return vectors

    def similarity(self, left: Iterable[str], right: Iterable[str]) -> Vectors:
        """Cosines, ``(len(left), len(right))``."""
        return _unit(self.encode(left)) @ _unit(self.encode(right)).T

    def search(self, queries: Iterable[str], corpus: Iterable[str], k: int = 10) -> list[list[tuple[int, float]]]:
        """For each query the k most similar texts of the corpus as (row, cosine), in descending order."""
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise InputError(f"k: {k!r} was given, and it must be an integer of at least 1")
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
