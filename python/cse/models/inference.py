"""Inference with a trained encoder: embeddings and similarities."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from numbers import Integral
from os import PathLike, fspath

import numpy as np
import numpy.typing as npt

from ..errors import InputError, check_texts, unknown
from .device import pick_device, pick_precision
from .encoder import SentenceEncoder, load_encoder
from .encoders import OtherEncoder, find_encoder
from .pooling import POOLERS
from .resolve import find_model

__all__ = ["Encoder"]

Vectors = npt.NDArray[np.float32]


class Encoder:
    """A sentence encoder for inference.

    Args:
        model: Folder of a trained encoder (``runs/NAME/best``), folder or hub name of any Hugging Face encoder, or
            ``minilm``; or ``glove:FILE``, ``whitening:MODEL@FILE`` and other kinds (``cse.models.encoders``).
        pooler: See ``cse.models.pooling.pool``. Default: the pooling declared by a sentence-transformers directory. A
            plain Hugging Face directory does not declare one; ``avg`` is then used, as in sentence-transformers, which
            is wrong for a model trained with [CLS] pooling.
        device: A PyTorch device; ``auto`` is CUDA if available, else the CPU.
        precision: Precision in which texts are encoded, ``fp32``, ``bf16`` or ``auto``: bf16 on CUDA and on processors
            that are faster with it (``cse.models.device.pick_precision``), else fp32. Embeddings are float32 in any.

    Raises:
        InputError: If the pooler or the precision is unknown, the model cannot be found or loaded, or the device is not
            usable.
    """

    def __init__(
        self,
        model: str | PathLike[str],
        *,
        pooler: str | None = None,
        device: str = "auto",
        precision: str = "fp32",
    ) -> None:
        if pooler is not None and pooler not in POOLERS:
            raise unknown("--pooler", pooler, POOLERS)
        self.given = fspath(model), pooler
        """The model and the pooler that were given."""
        self.device = pick_device(device)
        self.precision, self.precision_reason = pick_precision(self.device, precision)
        """The precision that is used, ``fp32`` or ``bf16``, and the reason for it as text."""
        self.plain = False
        self.model: SentenceEncoder | OtherEncoder
        other = find_encoder(fspath(model), self.device)
        if other is not None:
            if pooler is not None:
                raise InputError(f"--pooler: {fspath(model)} has no pooling to choose; leave it out")
            self.model, self.pooling = other, other.summary
            return
        source = find_model(fspath(model))
        self.plain = source.pooler is None and pooler is None
        """True if neither the directory nor the caller specified the pooling, so that ``avg`` is used."""
        used = pooler or source.pooler or "avg"
        encoder = load_encoder(source, used, for_inference=True).to(self.device).eval()
        self.model = encoder
        self.pooling = f"{used}: {POOLERS[used]}"
        """Name and description of the pooling."""
        if used == "cls":
            trained = encoder.use_trained_pooler or encoder.keep_head
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
        """Encodes texts into embeddings.

        Args:
            texts: Any iterable of strings, including NumPy arrays. The embedding of a blank text is zero, as in
                ``cse encode``. Lone surrogates are replaced by U+FFFD, with a warning.
            batch_size: Texts per forward pass, at least 1.
            progress: Called with the number of texts encoded since its last call.

        Returns:
            ``(n, D)`` float32, one row per text.

        Raises:
            InputError: If ``texts`` is a single string or has an element that is not a string, or if ``batch_size`` is
                not an integer of at least 1.
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
            return self.model.encode(whole, batch_size=int(batch_size), progress=progress, precision=self.precision)
        vectors = np.zeros((len(whole), self.embedding_dim), dtype=np.float32)
        if filled:
            vectors[filled] = self.model.encode(
                [whole[row] for row in filled],
                batch_size=int(batch_size),
                progress=progress,
                precision=self.precision,
            )
        return vectors

    def similarity(self, left: Iterable[str], right: Iterable[str]) -> Vectors:
        """Returns the cosine similarities of all pairs, ``(len(left), len(right))`` float32."""
        return _unit(self.encode(left)) @ _unit(self.encode(right)).T


def _repaired(text: str) -> str:
    """Replaces lone surrogates by U+FFFD: they cannot be encoded as UTF-8, and tokenizers reject them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _unit(vectors: Vectors) -> Vectors:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    points: Vectors = vectors / np.maximum(norms, 1e-12)
    return points
