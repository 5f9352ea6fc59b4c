"""A hash of everything that the embeddings of a model depend on."""

from __future__ import annotations

import hashlib
import re
from typing import Any

from .. import _core
from ..errors import InputError, shown


def model_digest(encoder: Any, prompt: str | None = None) -> str:
    """Returns a hexadecimal hash of a model's files (such as weights and tokenizer), pooling, dimensions and prompt.

    The path of the folder does not affect the hash, so a model can be moved. The prompt is ``prompt`` if it is given,
    else the prompt of the encoder. Of an encoder without files, the modules and weights are hashed.

    Raises ``InputError`` if ``encoder`` is not an encoder of cse, but for example a name.
    """
    if not hasattr(encoder, "given"):
        raise InputError(f"encoder: a cse.Encoder was expected, not {shown(encoder)}; open it with cse.Encoder(...)")
    name = "SentenceEncoder"
    if encoder.given[0].startswith("onnx:"):
        name = "Onnx " + re.sub(r"[^@]*/", "", encoder.given[0].removeprefix("onnx:"))
    elif (other := encoder.other) is not None:
        # ``what`` can hold paths and options (MODEL@FILE@DIMS for whitening); of a path, only the last part is used.
        name = f"{type(other).__name__} " + re.sub(r"[^@]*/", "", other.what)
    content = [
        name,
        encoder.pooling,
        str(encoder.embedding_dim),
        str(getattr(encoder, "prompt", "")) if prompt is None else prompt,
    ]
    content += sorted(f"{name} {_core.hash_file(str(path))}" for name, path in encoder.files())
    content += in_memory(encoder)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def in_memory(encoder: Any) -> list[str]:
    """Returns what identifies an encoder that was built from modules and has no files: these, and hashed weights."""
    if encoder.files():
        return []
    import torch

    tokenizer: Any = getattr(encoder, "tokenizer", None)
    vocabulary = sorted(tokenizer.get_vocab().items()) if hasattr(tokenizer, "get_vocab") else ()
    weights = []
    for name, value in encoder.state_dict().items():
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        weights.append(f"{name} {value.dtype} {_core.hash_bytes(content)}")
    return [repr(encoder), hashlib.sha256(str(vocabulary).encode()).hexdigest(), *weights]
