"""LoRA adapters of a transformer (made with peft), either merged into its weights or saved and loaded separately."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import nn

from ..errors import InputError

if TYPE_CHECKING:
    from .resolve import Source

__all__ = ["Adapters", "import_peft", "with_adapter"]

WEIGHTS = "adapter_model.safetensors"
NAME = "default"


def import_peft(flag: str) -> Any:
    """Returns the peft package; raises an ``InputError`` that names ``flag`` if peft is not installed."""
    try:
        import peft
    except ImportError:
        raise InputError(f"{flag}: needs peft, which is not installed; run pip install 'cse[lora]'") from None
    return peft


class Adapters:
    """The adapters of an encoder that is trained with ``cse.features.lora``.

    Args:
        config: peft's ``LoraConfig``.
        source: The base model.
        keep: Whether the adapters are saved separately instead of being merged into the weights.
    """

    def __init__(self, config: Any, source: Source, keep: bool) -> None:
        self.config, self.source, self.keep = config, source, keep

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

    def save(self, backbone: Any, folder: Path) -> None:
        """Writes the adapters and the name or path of their base model, for peft and sentence-transformers.

        No config.json is written: with one, transformers would look for the base model's weights in this folder.
        """
        name, path = self.source.name, self.source.path
        self.config.base_model_name_or_path = (
            name if "/" in name and not Path(name).exists() else str(Path(path).resolve())
        )
        self.config.save_pretrained(str(folder))
        weights = {
            f"base_model.model.{key.replace(f'.{NAME}', '')}": values.detach().cpu().contiguous()
            for key, values in backbone.state_dict().items()
            if ".lora_" in key
        }
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def with_adapter(backbone: Any, folder: Path, model: str) -> Any:
    """Returns the transformer with the adapters in ``folder`` merged into its weights."""
    peft = import_peft(f"--model {model}")
    return peft.PeftModel.from_pretrained(backbone, str(folder)).merge_and_unload()
