"""The head of a masked language model, saved next to the encoder that was trained with it.

``mlm_head/model.safetensors`` holds the weights of the head under their names in the masked language model of
transformers, except for weights that are tied to the token embeddings. ``AutoModel`` and ``SentenceTransformer`` do not
read this folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import InputError, first_line

__all__ = ["load_mlm_head", "mlm_head", "save_mlm_head"]

FOLDER = "mlm_head"


def mlm_head(model: Any) -> dict[str, nn.Parameter]:
    """Returns the parameters of the head of a masked language model by name, without tied token embeddings."""
    shared = model.get_input_embeddings().weight
    prefix = f"{model.base_model_prefix}."
    return {name: p for name, p in model.named_parameters() if not name.startswith(prefix) and p is not shared}


def load_mlm_head(model: Any, folder: Path) -> bool:
    """Loads the head saved in ``folder`` into a masked language model; returns False if there is none.

    Raises ``InputError`` if the saved head cannot be read, or belongs to another model.
    """
    path = folder / FOLDER / "model.safetensors"
    if not path.is_file():
        return False
    try:
        weights = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: the head cannot be loaded ({first_line(error)})") from None
    head = mlm_head(model)
    if {name: values.shape for name, values in head.items()} != {k: v.shape for k, v in weights.items()}:
        raise InputError(f"{path}: the head belongs to another model; remove the folder {FOLDER}, or restore the file")
    with torch.no_grad():
        for name, values in head.items():
            values.copy_(weights[name])
    return True


def save_mlm_head(model: Any, folder: Path) -> None:
    """Saves the head of a masked language model in a new subfolder of ``folder``, which holds the encoder."""
    (folder / FOLDER).mkdir()
    weights: dict[str, Tensor] = {name: values.detach().cpu().contiguous() for name, values in mlm_head(model).items()}
    save_file(weights, folder / FOLDER / "model.safetensors")
