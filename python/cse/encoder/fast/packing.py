"""Packed batches: a transformer encodes the tokens of all rows as one sequence without padding.

All operations but attention treat each token on its own. For attention, ``Layout`` divides the sequence into groups of
rows of similar length, where short rows of a group are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .lengths import GROUP

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
        """Returns packed vectors ``(1, N, D)`` by row, ``(B, T, D)``; padding is 0."""
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

        ``attention`` maps the vectors of a group, ``(R, H, T, d)``, and its padding (see ``Group``) to ``(R, H, T, d)``.
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

    Returns the last hidden states ``(B, T, D)``, 0 for padding, and the states of all layers (none without ``layers``).
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
    """Returns whether inputs can be packed: only ``INPUTS``, of one shape, on the CPU, with at least one token."""
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
