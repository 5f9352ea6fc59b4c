"""A hash of everything that the embeddings of an encoder depend on."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from .. import _core
from .encoders import OtherEncoder
from .inference import Encoder

__all__ = ["model_digest"]

SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
MODULE = re.compile(r"\d+_\w+")
"""Folders of the modules of sentence-transformers, as 1_Pooling."""


def model_digest(encoder: Encoder, prompt: str | None = None) -> str:
    """Returns a hash, hexadecimal, of the files of a model (weights, configuration, tokenizer), its pooling and prompt.

    The path of the folder has no influence, so a model can be moved. ``prompt`` takes the place of the encoder's.
    """
    model = encoder.model
    name = type(model).__name__
    if isinstance(model, OtherEncoder):
        # WHAT of KIND:WHAT has options after its files, as whitening:MODEL@FILE@DIMS.
        name += " " + re.sub(r"[^@]*/", "", model.what)
        files = [(path.name, path) for path in model.files()]
    else:
        folder = Path(model.source.path)
        folders = [folder, *(path for path in folder.iterdir() if path.is_dir() and MODULE.fullmatch(path.name))]
        found = [path for each in folders for path in each.iterdir() if path.suffix in SUFFIXES and path.is_file()]
        files = [(str(path.relative_to(folder)), path) for path in found]
        # In older directories, modules are next to the folder of the transformer, the base of an adapter anywhere.
        others = [stage.folder for stage in model.source.modules.stages if stage.folder.parent != folder]
        others += [Path(model.source.base)] if model.source.base else []
        files += [(f"{each.name}/{path.name}", path) for each in others for path in each.iterdir() if path.is_file()]
    content = [
        name,
        encoder.pooling,
        str(encoder.embedding_dim),
        str(getattr(encoder, "prompt", "")) if prompt is None else prompt,
    ]
    content += sorted(f"{name} {_core.hash_file(str(path))}" for name, path in files)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]
