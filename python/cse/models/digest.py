"""A hash of the files and settings that the embeddings of an encoder depend on."""

from __future__ import annotations

import hashlib
import re

from .. import _core
from .encoders import OtherEncoder
from .files import model_files
from .inference import Encoder

__all__ = ["model_digest"]


def model_digest(encoder: Encoder, prompt: str | None = None) -> str:
    """Returns a hexadecimal hash of a model's files (such as weights and tokenizer), pooling, dimensions and prompt.

    The path of the folder does not affect the hash, so a model can be moved. The prompt is ``prompt`` if it is given,
    else the prompt of the encoder.
    """
    model = encoder.model
    name = type(model).__name__
    if isinstance(model, OtherEncoder):
        # ``what`` can hold paths and options (MODEL@FILE@DIMS for whitening); of a path, only the last part is used.
        name += " " + re.sub(r"[^@]*/", "", model.what)
        files = [(path.name, path) for path in model.files()]
    else:
        files = model_files(model.source)
    content = [
        name,
        encoder.pooling,
        str(encoder.embedding_dim),
        str(getattr(encoder, "prompt", "")) if prompt is None else prompt,
    ]
    content += sorted(f"{name} {_core.hash_file(str(path))}" for name, path in files)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]
