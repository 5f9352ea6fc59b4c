"""Computes bfloat16 matrix products on processors without bfloat16 instructions, at nearly the speed of float32.

On such a processor, PyTorch's products of bfloat16 tensors are about fifty times slower than products of float32
tensors. This module converts the bfloat16 inputs to float32, computes the product in float32, and rounds the result to
bfloat16. The bfloat16 instructions of other processors also compute exact products of elements and sum them in float32,
so the results are equal up to the order of summation. All other operations are left to PyTorch. Use this module to
measure scores, not speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["EmulatedBf16"]

PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
    # In inference mode, PyTorch does not decompose these two into the products above.
    torch.ops.aten.linear.default,
    torch.ops.aten.matmul.default,
}
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
COMPOSED = torch.ops.aten.scaled_dot_product_attention.default


class EmulatedBf16(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that computes bfloat16 products and attention on the CPU in float32, and counts these calls."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces products and attention of bfloat16 tensors, and calls all other functions unchanged."""
        kwargs = kwargs or {}
        if function in PRODUCTS and any(isinstance(each, Tensor) and each.dtype == torch.bfloat16 for each in args):
            self.count += 1
            wide = [each.float() if isinstance(each, Tensor) else each for each in args]
            return function(*wide, **kwargs).to(torch.bfloat16)
        if function is ATTENTION and args[0].dtype == torch.bfloat16:
            self.count += 1
            return attention(*args, **kwargs)
        if function is COMPOSED and args[0].dtype == torch.bfloat16:
            self.count += 1
            names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
            return attention(**dict(zip(names, args, strict=False)), **kwargs)[0]
        return function(*args, **kwargs)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes attention as PyTorch's CPU kernel does, without dropout or gradients.

    Scores and sums are in float32, and exponentials are rounded to bfloat16.
    """
    if is_causal or dropout_p:
        raise NotImplementedError("emulated attention: causal masks and dropout are not supported")
    scores = query.float() @ key.float().transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if boolean else scores + attn_mask.float()
    exponentials = (scores - scores.amax(-1, keepdim=True)).exp()
    total = exponentials.sum(-1, keepdim=True)
    found = exponentials.to(torch.bfloat16).float() @ value.float() / total
    return found.to(torch.bfloat16), scores.logsumexp(-1)
