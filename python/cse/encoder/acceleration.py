"""Faster forward passes: dropout on the CPU, batches without padding, single lookups of token embeddings, joint casts.

In ``FastDropout``, each element of a mask is decided by 16 random bits of ChaCha8, which the core computes in parallel
(PyTorch uses one thread); the seed of a mask is drawn from PyTorch's generator, so that runs are reproducible.

In packed batches, a transformer encodes the tokens of all rows as one sequence without padding. All operations but
attention treat each token on its own. For attention, ``Layout`` divides the sequence into groups of rows of similar
length, where short rows of a group are padded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import cse._core as _core

from ..views import Frozen


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


# Packed batches

# Rows per group of similar length.
GROUP = 32
# The types of models whose attention can be packed, and whether their position ids begin after the padding index.
MODELS = {"bert": False, "roberta": True, "xlm-roberta": True, "camembert": True}
INPUTS = {"input_ids", "attention_mask", "token_type_ids", "position_ids"}
# The module of transformers whose hooks, which stay after the first request for hidden states, pass them on unchanged.
CAPTURING = "transformers.utils.output_capturing"


class _Pad(torch.autograd.Function):
    """Copies rows to the given places of a larger matrix, which is 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros(rows, x.shape[1]).index_copy_(0, places, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _Unpad(torch.autograd.Function):
    """Selects rows at distinct places. The gradient of PyTorch's ``index_select`` sums rows, which is slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.rows = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.rows, gradient.shape[1]).index_copy_(0, places, gradient), None


class Group(NamedTuple):
    """R rows of similar length, with n tokens and at most T each, which attention processes at once."""

    tokens: int
    rows: int
    length: int
    places: Tensor
    """``(n,)`` places of the tokens among R x T."""
    padding: Tensor | None
    """``(R, 1, 1, T)`` bool, True for padding; None if there is none."""


class Layout:
    """Where the tokens of each row stand in the packed sequence; rows, of a mask ``(B, T)``, are sorted by length."""

    def __init__(self, mask: Tensor) -> None:
        real = mask.bool()
        lengths = real.sum(1)
        order = lengths.argsort(stable=True)
        rows, columns = real[order].nonzero(as_tuple=True)
        self.shape = tuple(mask.shape)
        self.places = order[rows] * mask.shape[1] + columns
        """``(N,)`` places of the packed tokens among B x T."""
        self.groups = [_group(lengths[some]) for some in torch.split(order, GROUP)]

    def pack(self, values: Tensor) -> Tensor:
        """Returns the values ``(B, T)`` of the packed tokens, ``(1, N)``."""
        return values.flatten()[self.places][None]

    def unpack(self, hidden: Tensor) -> Tensor:
        """Returns packed vectors ``(1, N, D)`` by row, ``(B, T, D)``; those of padding are 0."""
        rows, columns = self.shape
        padded: Tensor = _Pad.apply(hidden[0], self.places, rows * columns)  # type: ignore[no-untyped-call]
        return padded.view(rows, columns, -1)

    def attend(
        self,
        attention: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        """Applies attention to each group: maps queries, keys and values, ``(1, H, N, d)``, to ``(1, N, H, d)``.

        ``attention`` maps those of a group, ``(R, H, T, d)``, and its padding (see ``Group``) to ``(R, H, T, d)``.
        """
        heads, size = query.shape[1], query.shape[3]
        sizes = [group.tokens for group in self.groups]
        parts = [torch.split(x.transpose(1, 2).reshape(-1, heads * size), sizes) for x in (query, key, value)]
        results = []
        for group, *inputs in zip(self.groups, *parts, strict=True):
            cells = group.rows * group.length
            if group.padding is not None:
                inputs = [_Pad.apply(x, group.places, cells) for x in inputs]  # type: ignore[no-untyped-call]
            q, k, v = (x.view(group.rows, group.length, heads, size).transpose(1, 2) for x in inputs)
            result = attention(q, k, v, group.padding).transpose(1, 2).reshape(cells, heads * size)
            if group.padding is not None:
                result = _Unpad.apply(result, group.places)  # type: ignore[no-untyped-call]
            results.append(result)
        return torch.cat(results).view(1, -1, heads, size)


def _group(lengths: Tensor) -> Group:
    length = int(lengths.max())
    real = torch.arange(length) < lengths[:, None]
    padding = None if bool(real.all()) else ~real[:, None, None]
    return Group(int(lengths.sum()), len(lengths), length, real.flatten().nonzero()[:, 0], padding)


def encode_packed(backbone: Any, inputs: Mapping[str, Tensor], *, layers: bool) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Encodes rows, ``(B, T)`` for each name of ``INPUTS``, as one sequence without padding.

    Returns the last hidden states ``(B, T, D)``, 0 for padding, and those of all layers (none without ``layers``).
    """
    ids = inputs["input_ids"]
    positions = inputs.get("position_ids")
    if positions is None:
        positions = torch.arange(ids.shape[1]).expand(ids.shape)
        if MODELS[backbone.config.model_type]:
            padding = backbone.config.pad_token_id
            positions = (ids != padding).cumsum(1) * (ids != padding) + padding
    layout = Layout(inputs["attention_mask"])
    packed = {name: layout.pack(values) for name, values in inputs.items() if name != "attention_mask"}
    packed["position_ids"] = layout.pack(positions)
    outputs = backbone(**packed, output_hidden_states=layers, layout=layout)
    states = outputs.hidden_states if layers else ()
    return layout.unpack(outputs.last_hidden_state), tuple(layout.unpack(state) for state in states)


def is_hooked(backbone: torch.nn.Module) -> bool:
    """Returns whether hooks in a transformer may read hidden states or gradients, which they expect by row."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    hooks = (hook for module in backbone.modules() for kind in kinds for hook in getattr(module, kind).values())
    return any(getattr(hook, "__module__", "") != CAPTURING for hook in hooks)


def is_packable(inputs: Mapping[str, Tensor]) -> bool:
    """Returns whether inputs can be packed: those of ``INPUTS``, of one shape, on the CPU, with at least one token."""
    mask = inputs.get("attention_mask")
    if mask is None or not inputs.keys() <= INPUTS or mask.device.type != "cpu":
        return False
    return all(values.shape == mask.shape for values in inputs.values()) and bool(mask.any())


@torch.no_grad()
def can_pack(backbone: Any) -> bool:
    """Returns whether this release of transformers passes a ``Layout`` to attention; two short rows are encoded."""
    config = backbone.config
    if config.model_type not in MODELS or getattr(config, "is_decoder", False):
        return False
    ids = torch.tensor([[5, 6, 7], [8, config.pad_token_id or 0, config.pad_token_id or 0]]) % config.vocab_size
    inputs = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])}
    training = backbone.training
    backbone.eval()
    try:
        with suppress(Exception):  # whatever a release raises that does not know the layout
            expected = backbone(**inputs).last_hidden_state
            found, _ = encode_packed(backbone, inputs, layers=False)
            real = inputs["attention_mask"].bool()
            return torch.allclose(found[real], expected[real], rtol=0, atol=1e-4)
        return False
    finally:
        backbone.train(training)
