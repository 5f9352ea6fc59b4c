"""Registers attention implementations with transformers; the configuration of a backbone selects one by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

__all__ = ["mask_always", "replace_attention"]


def replace_attention(
    backbone: Any, name: str, attention: Callable[..., Any], mask: Callable[..., Tensor | None] | None = None
) -> None:
    """Replaces the attention of a transformer, if it uses the ``sdpa`` implementation of the library transformers.

    A transformer with another implementation is left unchanged. So is every transformer in older releases of the
    library, in which each model builds its own masks.

    Args:
        backbone: A transformer.
        name: Name under which the implementation is registered.
        attention: An attention function with the interface that transformers expects.
        mask: A mask function with the interface that transformers expects. Default: that of ``sdpa``.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if getattr(backbone.config, "_attn_implementation", None) != "sdpa":
        return
    try:
        from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    except ImportError:  # older release
        return
    ALL_ATTENTION_FUNCTIONS.register(name, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, mask or ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    backbone.config._attn_implementation = name


def mask_always(backbone: Any) -> None:
    """Makes a transformer use the attention mask of every batch, even if no row is padded.

    By default, transformers checks in every forward pass whether there is padding. The check copies a value from the
    device, so the CPU waits until the device has finished the previous step.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    replace_attention(backbone, "cse_masked", sdpa_attention_forward, _whole_mask)


def _whole_mask(**arguments: Any) -> Tensor | None:
    from transformers.masking_utils import sdpa_mask

    skips = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    mask: Tensor | None = sdpa_mask(**{**arguments, **skips})
    return mask
