"""Base class and registry of encoders other than trainable transformers.

In ``cse eval``, ``cse compare``, ``cse encode`` and ``Encoder``, such encoders are named ``KIND:WHAT``, for example
``onnx:folder``. Other packages can add kinds through the entry-point group ``cse.encoders``; the package ``cse_papers``
adds ``glove:FILE`` and ``whitening:MODEL@FILE``, which published tables compare with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..registry import Registry


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
