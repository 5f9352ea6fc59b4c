"""Encoders exported to ONNX, run by onnxruntime (extra ``cse[onnx]``).

The file ``onnx/model.onnx`` in the folder of a model holds only the transformer. ``SentenceTransformer(folder,
backend="onnx")`` and ``onnx:FOLDER`` load it from there, and take the tokenizer, the pooling and further modules from
the other files of the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..encoders import OtherEncoder
from ..light import SUMMARY, LightEncoder


class Onnx(OtherEncoder):
    """A model whose transformer is run by onnxruntime on the CPU (``onnx:FOLDER`` or ``onnx:FOLDER/onnx/FILE.onnx``).

    Raises ``InputError`` if the file does not exist or cannot be loaded, or onnxruntime is not installed.
    """

    summary = SUMMARY

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        self.light = LightEncoder(f"onnx:{what}")

    @property
    def embedding_dim(self) -> int:
        return self.light.width

    def encode(self, texts: Sequence[str], *, precision: str = "fp32", **settings: Any) -> npt.NDArray[np.float32]:
        """Returns the embeddings ``(n, D)``, computed in the precision of the file."""
        vectors: npt.NDArray[np.float32] = self.light.encode(texts, **{"prompt": "", **settings})
        return vectors

    def files(self) -> list[Path]:
        return [path for _, path in self.light.files()]
