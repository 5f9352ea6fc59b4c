"""Moves the modules of a run to its device, and replaces slow parts of their transformers."""

from __future__ import annotations

from ...augment.base import View
from ...encoder.device import compile_backbone
from ...encoder.fast.attention import mask_always, transformers_in
from ...encoder.fast.casts import CastTogether
from ...encoder.fast.dropout import use_fast_dropout
from ...encoder.fast.packing import can_pack
from ...encoder.trained import SentenceEncoder
from .state import Modules


def accelerate(modules: Modules, device: str, *, compiled: bool) -> None:
    """Moves the modules to the device and replaces slow parts of the backbones.

    On a GPU, the attention always uses the mask, and transformers that are not compiled cast their weights together. On
    the CPU, unless ``compiled``, dropout is replaced, and models that can pack rows encode them without padding.
    """
    for module in modules.modules().values():
        module.to(device)
    if device != "cpu":
        for backbone in dict.fromkeys(transformers_in(modules.modules().values())):
            mask_always(backbone)
            if not (compiled and backbone is modules.encoder.backbone):
                CastTogether(backbone)
    elif not compiled:
        for encoder in filter(None, (modules.encoder, modules.second)):
            use_fast_dropout(encoder.backbone)
            encoder.packed = can_pack(encoder.backbone)
    if compiled:
        compile_backbone(modules.encoder.backbone, device)


def has_no_dropout(view: View, encoder: SentenceEncoder) -> bool:
    """Returns whether an encoder gives a view the same embeddings each time."""
    if view.hook is not None or view.dropout is not None:
        return view.hook is None and view.dropout == 0
    return not any(getattr(module, "p", 0) for module in encoder.backbone.modules())
