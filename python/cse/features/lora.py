"""LoRA: low-rank adapters of linear layers (Hu et al. 2021, arXiv:2106.09685), implemented by peft."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ..encoder.modules import import_peft
from ..errors import InputError, first_line
from . import LoRAOptions
from .base import EncoderMethod

if TYPE_CHECKING:
    from ..context import Context

# Matches the layers of a pooler, which have no gradient if the pooler is not used.
UNUSED = r"(.*\.)?pooler\..*"


class LoRA(EncoderMethod):
    """Replaces the weights W of linear layers with W + alpha / rank * B A, where W is frozen and B starts at 0.

    Only the adapters and, if there is one, the MLP head are trained and stored in checkpoints. When the encoder is
    saved, the adapters are added to the weights. ``--merge-with-base WEIGHT`` multiplies B by 1 - WEIGHT for this.
    """

    Options = LoRAOptions
    summary = "trains low-rank adapters instead of the weights (LoRA, with peft)"
    recordable = True

    def __init__(self, options: LoRAOptions, context: Context) -> None:
        super().__init__(options, context)
        peft = import_peft(f"--lora {options.rank}")
        encoder = context.trained
        source = encoder.source
        for folder in (Path(name) for name in (source.path, source.base) if name is not None):
            for path in sorted([*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]):
                context.depends_on(path)
        shapes = [layer.weight.shape for layer in encoder.backbone.modules() if isinstance(layer, nn.Linear)]
        if options.rank > (widest := max(map(min, shapes), default=options.rank)):
            raise InputError(
                f"--lora {options.rank}: the layers of {source.name} have at most {widest} dimensions; use a lower rank"
            )
        head = encoder.head
        encoder.requires_grad_(False)
        if head is not None:
            head.requires_grad_(True)
        config = peft.LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha or 2 * options.rank,
            lora_dropout=options.dropout,
            target_modules=list(options.targets) or "all-linear",
            exclude_modules=None if encoder.use_trained_pooler else UNUSED,
        )
        try:
            peft.inject_adapter_in_model(config, encoder.backbone)
        except ValueError as error:
            raise InputError(f"lora.targets: {', '.join(options.targets)}: {first_line(error)}") from None
        encoder.adapters = "default"  # the name that peft gives them

    @classmethod
    def implies(cls, options: Any) -> dict[str, Any]:
        """Returns a learning rate of 1e-4, higher than usual because B starts at 0; this rate was not tuned."""
        return {"lr": 1e-4}
