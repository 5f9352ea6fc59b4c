"""Other implementations of attention in a transformer, and the transformers of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn

from ...views import Frozen


def replace_attention(
    backbone: Any, name: str, attention: Callable[..., Any], mask: Callable[..., Tensor | None] | None = None
) -> None:
    """Replaces the attention of a transformer, if it uses the ``sdpa`` implementation of the library transformers."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if getattr(backbone.config, "_attn_implementation", None) != "sdpa":
        return
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask or ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    backbone.config._attn_implementation = name


def mask_always(backbone: Any) -> None:
    """Makes a transformer use the attention mask of every batch: the host waits when transformers looks for padding."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    replace_attention(backbone, "cse_masked", sdpa_attention_forward, lambda **given: sdpa_mask(**{**given, **skips}))


def transformers_in(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Yields the transformers in some modules and in their ``Frozen`` models, without heads for other tasks."""
    from transformers import PreTrainedModel

    for top in modules:
        for module in top.modules():
            if isinstance(module, Frozen):
                yield from transformers_in([module.model])
            elif isinstance(module, PreTrainedModel) and module.base_model is module:
                yield module
