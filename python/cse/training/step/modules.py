"""Prepares the modules of a run for training: device, accelerations, and their connection to the batches."""

from __future__ import annotations

from ...augment.base import View
from ...losses.base import BatchTerm
from ...models.device import compile_backbone
from ...models.reading.prompts import TrainingPrompts
from ...models.running.acceleration import mask_always, use_fast_dropout
from ...models.running.encoder import SentenceEncoder
from ..batches.batches import Batches
from .state import Modules


def connect(batches: Batches, views: tuple[View, View], modules: Modules, prompts: TrainingPrompts) -> None:
    """Sets the attributes of the batches that depend on the modules: views, prompts, partners and dropout."""
    batches.prompts = prompts
    terms = [term for term in modules.terms.values() if isinstance(term, BatchTerm)]
    batches.partner_views = lambda roles: next((found for term in terms if (found := term.partner_views(roles))), None)
    batches.views = views
    alike = modules.second is None
    batches.without_dropout = alike and all(_has_no_dropout(view, modules.encoder) for view in views)


def accelerate(modules: Modules, device: str, chunk_size: int | None, accumulate: int, *, compiled: bool) -> None:
    """Moves the modules to the device and replaces slow parts of the backbones.

    Compiles the backbone of the first encoder if ``compiled``. On a GPU, attention always uses the mask
    (``mask_always``). On the CPU, dropout is replaced (``use_fast_dropout``), unless ``compiled``.

    Args:
        modules: The modules of the run.
        device: Device of the encoders.
        compiled: Value of ``--compile``.
        chunk_size: Rows per chunk; None: a batch is encoded as a whole.
        accumulate: Batches per step.
    """
    for module in modules.modules().values():
        module.to(device)
    for each in (modules.encoder, modules.second):
        if each is None:
            continue
        if device != "cpu":
            mask_always(each.backbone)
        elif not compiled:
            use_fast_dropout(each.backbone)
    if compiled:
        # CUDA graphs require that a step encodes one batch as a whole.
        one_pass = accumulate == 1 and chunk_size is None and modules.second is None and not modules.hooks
        compile_backbone(modules.encoder.backbone, device, graphs=one_pass)


def _has_no_dropout(view: View, encoder: SentenceEncoder) -> bool:
    if view.hook is not None or view.dropout is not None:
        return view.hook is None and view.dropout == 0
    return not any(getattr(module, "p", 0) for module in encoder.backbone.modules())
