"""Weights that are cast to bf16 together for each forward pass, instead of one by one as in autocast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn


class _Cast(torch.autograd.Function):
    """Casts float32 weights to bf16, and their gradients to float32, in one operation each."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        copies = [torch.empty_like(weight, dtype=torch.bfloat16) for weight in weights]
        torch._foreach_copy_(copies, weights)
        ctx.set_materialize_grads(False)
        needed = ctx.needs_input_grad
        ctx.mark_non_differentiable(*(copy for copy, used in zip(copies, needed, strict=True) if not used))
        return tuple(copies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        given = [gradient for gradient in gradients if gradient is not None]
        cast = [torch.empty_like(gradient, dtype=torch.float32) for gradient in given]
        if cast:
            torch._foreach_copy_(cast, given)
        results = iter(cast)
        return tuple(None if gradient is None else next(results) for gradient in gradients)


class CastTogether:
    """Hooks by which the linear layers of a transformer use bf16 copies of their weights, made together for each pass.

    The values are the same as with autocast, which casts each weight separately. Layers of peft stay as they are.
    """

    def __init__(self, backbone: nn.Module) -> None:
        self._places = [
            (layer, name)
            for layer in backbone.modules()
            if type(layer) is nn.Linear
            for name, weight in layer._parameters.items()
            if weight is not None
        ]
        self._kept: list[Any] = []
        if self._places and not any(hasattr(module, "base_layer") for module in backbone.modules()):
            backbone.register_forward_pre_hook(self._before)
            backbone.register_forward_hook(self._after, always_call=True)

    def _before(self, *_: Any) -> None:
        weights: list[Any] = [layer._parameters[name] for layer, name in self._places]
        kind, casts = weights[0].device.type, weights[0].dtype == torch.float32
        if casts and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.bfloat16:
            self._kept = weights
            self._set(_Cast.apply(*weights))  # type: ignore[no-untyped-call]

    def _after(self, *_: Any) -> None:
        self._set(self._kept)
        self._kept = []

    def _set(self, values: Sequence[Any]) -> None:
        for (layer, name), value in zip(self._places, values, strict=False):
            layer._parameters[name] = value
