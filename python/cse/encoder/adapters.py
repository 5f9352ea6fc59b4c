"""Weights that are stored next to a transformer: LoRA adapters, and the head of a masked language model.

LoRA adapters (made with peft) are merged into the weights of the transformer when it is saved.

The head of a masked language model is saved next to the encoder that was trained with it.
``mlm_head/model.safetensors`` holds the weights of the head under their names in the masked language model of
transformers, except for weights that are tied to the token embeddings. ``AutoModel`` and ``SentenceTransformer`` do not
read this folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ..errors import InputError, first_line

NAME = "default"


def import_peft(flag: str) -> Any:
    """Returns the peft package; raises an ``InputError`` that names ``flag`` if peft is not installed."""
    try:
        import peft
    except ImportError:
        raise InputError(f"{flag} needs peft, which is not installed; run pip install 'cse[lora]'") from None
    return peft


class Adapters:
    """The adapters of an encoder that is trained with ``cse.features.encoder_methods``."""

    @contextmanager
    @torch.no_grad()
    def merged(self, backbone: nn.Module) -> Iterator[None]:
        """Context manager in which plain layers, with the adapters added to their weights, replace the adapter layers.

        On exit, the adapter layers and the original weights are restored exactly.
        """
        from peft.tuners.lora import LoraLayer

        replaced: list[Any] = []
        for parent in list(backbone.modules()):
            for name, layer in list(parent.named_children()):
                if isinstance(layer, LoraLayer):
                    base: Any = layer.get_base_layer()
                    replaced.append((parent, name, layer, base, base.weight.data))
        try:
            for parent, name, layer, base, weight in replaced:
                base.weight.data = weight + layer.get_delta_weight(NAME).to(weight)
                setattr(parent, name, base)
            yield
        finally:
            for parent, name, layer, base, weight in replaced:
                base.weight.data = weight
                setattr(parent, name, layer)


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
