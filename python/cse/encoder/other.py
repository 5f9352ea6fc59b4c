"""Modules of an ``Encoder`` that stand for a whole model which is no transformer, and their registry.

In ``cse eval``, ``cse compare``, ``cse encode`` and ``Encoder``, such encoders are named ``KIND:WHAT``, for example
``onnx:folder``. Other packages can add kinds through the entry-point group ``cse.encoders``; the package ``cse_papers``
adds ``glove:FILE`` and ``whitening:MODEL@FILE``, which published tables compare with.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.sentence_transformer import modules as library

from ..errors import InputError
from ..registry import Registry
from .light import SUMMARY, LightEncoder
from .prompts import plain


class OtherEncoder(library.InputModule):
    """Base class of modules of an ``Encoder`` that compute embeddings without a transformer.

    Args:
        what: The part of the name after the colon.
        device: A PyTorch device.

    Raises:
        InputError: If the encoder cannot be loaded.
    """

    summary: ClassVar[str] = ""
    unit_length = False
    declared: Mapping[str, Any] = {}
    """Further arguments of ``SentenceTransformer``, such as the prompts that the encoder declares."""

    def __init__(self, what: str, device: str) -> None:
        super().__init__()
        self.what, self.device, self.precision = what, device, "fp32"
        self.tokenizer: Any = None

    @property
    @abstractmethod
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""

    @abstractmethod
    def encode(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings ``(n, D)`` of n texts; ``settings`` are ``batch_size`` and ``precision``."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Returns the files that the embeddings depend on."""

    def encode_with(self, prompt: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Returns the embeddings of texts with a prompt."""
        before = plain(prompt, self.what)
        return self.encode([before + text for text in texts], batch_size=max(len(texts), 1), precision=self.precision)

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **settings: Any) -> dict[str, Any]:
        """Returns the texts and the prompt."""
        return {"texts": list(inputs), "prompt": prompt or ""}

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        vectors = self.encode_with(features["prompt"], features["texts"])
        return {**features, "sentence_embedding": torch.from_numpy(np.ascontiguousarray(vectors))}

    def get_embedding_dimension(self) -> int:
        """Returns the number of dimensions of the embeddings."""
        return self.embedding_dim

    def save(self, output_path: str, *arguments: Any, **settings: Any) -> None:
        """Raises ``InputError``: such encoders have no folder of sentence-transformers."""
        raise InputError(f"{self.what}: cannot be saved as a model of sentence-transformers")


class Onnx(OtherEncoder):
    """A model exported by ``cse export --onnx``, which keeps its prompts and leaves truncation to the ``Encoder``."""

    summary = SUMMARY

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        self.base = LightEncoder(f"onnx:{what}")
        self.unit_length = self.base.unit_length
        self.declared = {"prompts": self.base.prompts, "default_prompt_name": self.base.default_prompt_name}
        self.declared |= {"truncate_dim": self.base.dims, "similarity_fn_name": self.base.similarity_name}
        self.base.keep_dims(None)

    @property
    def embedding_dim(self) -> int:
        return self.base.embedding_dim

    def encode(self, texts: Sequence[str], **settings: Any) -> npt.NDArray[np.float32]:
        return self.encode_with("", texts)

    def encode_with(self, prompt: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors: npt.NDArray[np.float32] = self.base.encode(texts, prompt=prompt, batch_size=max(len(texts), 1))
        return vectors

    def files(self) -> list[Path]:
        return [path for _, path in self.base.files()]


ENCODERS: Registry[type[OtherEncoder]] = Registry("encoder", "cse.encoders", {"onnx": "cse.encoder.other:Onnx"})
"""Kinds of encoders by name: ``cse eval KIND:WHAT``."""
