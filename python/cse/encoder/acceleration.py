"""Faster forward passes: dropout on the CPU, grouping by length, single lookups of token embeddings, casts together.

In ``FastDropout``, each element of a mask is decided by 16 random bits of ChaCha8, which the core computes in parallel
(PyTorch uses one thread); the seed of a mask is drawn from PyTorch's generator, so that runs are reproducible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from .. import _core
from ..views import Frozen
from .packing import Layout


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

    The values are those of autocast, which casts each weight separately. Layers of peft stay as they are.
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


ATTENTION = "cse_fast_dropout"


def dropout_mask(shape: torch.Size | tuple[int, ...], p: float, dtype: torch.dtype) -> Tensor:
    """Returns a mask that is 0 with probability ``p``, rounded to a multiple of 2**-16, and 1 / (1 - p) elsewhere."""
    seed = int(torch.randint(2**63 - 1, ()).item())
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    mask = _core.dropout_mask(seed, round(p * 2**16), _scale(p, dtype), count)
    return torch.frombuffer(mask, dtype=dtype).view(shape)


@cache
def _scale(p: float, dtype: torch.dtype) -> bytes:
    scale = torch.tensor([1 / (1 - p) if p < 1 else 0.0], dtype=dtype)
    return scale.view(torch.uint8).numpy().tobytes()


class FastDropout(nn.Dropout):
    """Dropout like ``nn.Dropout``, for tensors on the CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return input
        return input * dropout_mask(input.shape, self.p, input.dtype)


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes attention with fast dropout of the probabilities, as transformers calls it.

    Maps ``(B, H, T, d)`` to ``(B, T, H, d)``; the mask is ``(B, 1, T, T)``. Rows that are packed as ``layout`` have
    B = 1. Without dropout, with causal attention and with fewer key heads, that of transformers is called.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    if layout is not None:

        def of_group(query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None) -> Tensor:
            scores = (query @ key.transpose(2, 3)).mul_(factor)
            if padding is not None:  # a finite number, because rows without tokens have only padding
                scores = scores.masked_fill_(padding, torch.finfo(scores.dtype).min)
            return _weighted(scores, value, dropout)

        return layout.attend(of_group, query, key, value), None
    causal = attention_mask is None and getattr(module, "is_causal", False)
    if dropout == 0 or causal or key.shape[1] != query.shape[1]:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    scores = query @ key.transpose(2, 3) * factor
    if attention_mask is not None:
        allowed = attention_mask[..., : key.shape[2]]
        scores = scores.masked_fill(~allowed, -torch.inf) if allowed.dtype == torch.bool else scores + allowed
    return _weighted(scores, value, dropout).transpose(1, 2).contiguous(), None


def _weighted(scores: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Returns the sums of the values, weighted by the softmax of the scores, to which dropout is applied."""
    weights = scores.softmax(-1)
    if dropout:
        weights = weights * dropout_mask(weights.shape, dropout, weights.dtype)
    return weights @ value


def use_fast_dropout(backbone: Any) -> None:
    """Replaces the dropout of a transformer on the CPU, in its ``nn.Dropout`` modules and in its attention."""
    for parent in list(backbone.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, FastDropout(child.p).train(child.training))
    replace_attention(backbone, ATTENTION, attention)


def batches_by_length(rows: Sequence[Sized], size: int) -> Iterator[npt.NDArray[np.intp]]:
    """Yields row indices in batches of ``size``, starting with the longest rows."""
    order = np.argsort([-len(row) for row in rows], kind="stable")
    for first in range(0, len(order), size):
        yield order[first : first + size]


def by_length(function: Callable[[dict[str, Tensor]], Tensor], inputs: Mapping[str, Tensor], size: int) -> Tensor:
    """Applies a function to groups of ``size`` rows of similar length, without the columns that are padding in all."""
    mask = inputs["attention_mask"]
    if len(mask) <= size:
        return function(dict(inputs))
    order = mask.sum(1).argsort(stable=True)
    results = []
    for rows in torch.split(order, size):
        used = mask[rows].any(0)
        results.append(function({name: values[rows][:, used] for name, values in inputs.items()}))
    return torch.cat(results)[order.argsort()]


@contextmanager
def one_lookup(backbone: Any, token_ids: Iterable[Tensor]) -> Iterator[None]:
    """Context manager in which a transformer takes the embeddings of the given tokens from a single lookup.

    The backward pass then has one gradient of the size of the table, not one for each forward pass.
    """
    table = backbone.get_input_embeddings()
    flat = [ids.flatten() for ids in token_ids]
    if type(table) is not nn.Embedding or not table.weight.requires_grad or table.max_norm is not None or not flat:
        yield
        return
    used: Tensor = torch.unique(torch.cat(flat))
    place = torch.full((table.num_embeddings,), -1).index_put((used,), torch.arange(len(used)))
    rows = table(used)

    def forward(ids: Tensor) -> Tensor:
        places = place[ids]
        if bool((places < 0).any()):
            return type(table).forward(table, ids)
        return nn.functional.embedding(places, rows)

    table.forward = forward  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        del table.forward
