"""Base class and registry of encoders other than trainable transformers, and such an encoder as a module.

In ``cse eval``, ``cse compare``, ``cse encode`` and ``Encoder``, such encoders are named ``KIND:WHAT``, for example
``onnx:folder``. Other packages can add kinds through the entry-point group ``cse.encoders``; the package ``cse_papers``
adds ``glove:FILE`` and ``whitening:MODEL@FILE``, which published tables compare with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.sentence_transformer import modules as library

from ..errors import InputError
from ..registry import Registry
from .light import LightEncoder
from .prompts import plain


class OtherEncoder(ABC):
    """Base class of encoders that ``Encoder`` can use instead of a transformer.

    Args:
        what: The part of the name after the colon.
        device: A PyTorch device.

    Raises:
        InputError: If the encoder cannot be loaded.
    """

    summary: ClassVar[str] = ""
    pooler = "none"

    def __init__(self, what: str, device: str) -> None:
        self.what, self.device = what, device

    @property
    @abstractmethod
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""

    @abstractmethod
    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        precision: str = "fp32",
    ) -> npt.NDArray[np.float32]:
        """Returns the embeddings ``(n, D)`` of n texts."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Returns the files that the embeddings depend on."""


ENCODERS: Registry[type[OtherEncoder]] = Registry("encoder", "cse.encoders", {"onnx": "cse.encoder.light:open_onnx"})
"""Kinds of encoders by name: ``cse eval KIND:WHAT``."""


class OtherModule(library.InputModule):
    """An ``OtherEncoder`` as a module of sentence-transformers."""

    def __init__(self, encoder: OtherEncoder | LightEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokenizer = None
        self.precision = "fp32"

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **settings: Any) -> dict[str, Any]:
        """Returns the texts and the prompt."""
        return {"texts": list(inputs), "prompt": prompt or ""}

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        texts, prompt = features["texts"], features["prompt"]
        size = max(len(texts), 1)
        if isinstance(self.encoder, LightEncoder):
            vectors = self.encoder.encode(texts, prompt=prompt, batch_size=size)
        else:
            before = plain(prompt, self.encoder.what)
            texts = [before + text for text in texts]
            vectors = self.encoder.encode(texts, batch_size=size, precision=self.precision)
        return {**features, "sentence_embedding": torch.from_numpy(np.ascontiguousarray(vectors))}

    def get_embedding_dimension(self) -> int:
        return self.encoder.embedding_dim

    def save(self, output_path: str, *arguments: Any, **settings: Any) -> None:
        """Raises ``InputError``: such encoders have no folder of sentence-transformers."""
        raise InputError(f"{self.encoder.what}: cannot be saved as a model of sentence-transformers")
