"""Encoders exported to ONNX, run by onnxruntime (extra ``cse[onnx]``).

The file ``onnx/model.onnx`` in the folder of a model holds only the transformer. ``SentenceTransformer(folder,
backend="onnx")`` and ``onnx:FOLDER`` load it from there, and take the tokenizer, the pooling and further modules from
the other files of the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...errors import InputError, first_line
from ..encoders import OtherEncoder
from ..pooling import pooler_in_use
from ..reading.resolve import best_of_run, find_model
from .encoder import SentenceEncoder, load_encoder

FOLDER, MODEL = "onnx", "model.onnx"
NOT_INSTALLED = "onnxruntime, onnx or onnxscript is not installed; run pip install 'cse[onnx]'"


class Onnx(OtherEncoder):
    """A model whose transformer is run by onnxruntime on the CPU (``onnx:FOLDER`` or ``onnx:FOLDER/onnx/FILE.onnx``).

    Raises ``InputError`` if the file does not exist or cannot be loaded, or onnxruntime is not installed.
    """

    summary = "a model exported by cse export --onnx: onnx:FOLDER, or onnx:FOLDER/onnx/FILE.onnx"

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        path = Path(what)
        self.file = path if path.suffix == ".onnx" else Path(best_of_run(what)) / FOLDER / MODEL
        if not self.file.is_file():
            raise InputError(f"onnx:{what}: {self.file} does not exist; write it with cse export FOLDER --onnx")
        source = find_model(str(self.file.parent.parent))
        self.model = with_onnx(load_encoder(source, pooler_in_use(None, source.pooler), for_inference=True), self.file)
        self.pooler = self.model.pooler

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""
        return self.model.embedding_dim

    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        precision: str = "fp32",
        prompt: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """Returns the embeddings ``(n, D)``, computed in the precision of the file; see ``SentenceEncoder.encode``."""
        return self.model.encode(texts, batch_size=batch_size, progress=progress, prompt=prompt)

    def files(self) -> list[Path]:
        """Returns the files of the ONNX transformer, the tokenizer, the pooling and further modules."""
        folder = self.file.parent.parent
        others = [path for pattern in ("*.json", "*.txt", "*.model") for path in folder.glob(pattern)]
        modules = [path for path in folder.glob("[0-9]*_*/*") if path.suffix in (".json", ".safetensors")]
        return [*sorted(self.file.parent.glob(f"{self.file.name}*")), *sorted(others), *sorted(modules)]


class OnnxTransformer(nn.Module):
    """An ONNX file that replaces a PyTorch transformer for inference.

    Args:
        file: A file with inputs such as ``input_ids``, ``(B, T)`` int64, and the output ``last_hidden_state``.
        config: The configuration of the transformer.
    """

    def __init__(self, file: Path, config: Any) -> None:
        super().__init__()
        try:
            import onnxruntime
        except ImportError:
            raise InputError(f"{file}: {NOT_INSTALLED}") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # only errors
        try:
            self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime defines its own exceptions
            raise InputError(f"{file}: cannot be loaded ({first_line(error)}); export it again") from None
        self.names = [each.name for each in self.session.get_inputs()]
        self.config = config
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)  # SentenceEncoder reads the device from it

    def forward(self, output_hidden_states: bool = False, **batch: Tensor) -> Any:
        """Returns an object with ``last_hidden_state``, ``(B, T, D)`` float32."""
        from transformers.modeling_outputs import BaseModelOutput

        zeros = torch.zeros_like(batch["input_ids"])  # for token types, which some tokenizers do not return
        inputs = {name: batch.get(name, zeros).cpu().numpy() for name in self.names}
        (states,) = self.session.run(["last_hidden_state"], inputs)
        return BaseModelOutput(last_hidden_state=torch.from_numpy(states))


def with_onnx(encoder: SentenceEncoder, file: Path) -> SentenceEncoder:
    """Replaces the transformer of an encoder with an ONNX file; returns the encoder, moved to the CPU."""
    encoder.backbone = OnnxTransformer(file, encoder.backbone.config)
    return encoder.to("cpu").eval()
