"""The forward pass of one view, with the encoder, dropout probability and hook of the view."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..augment.base import View
from ..features.base import hooked
from ..models.dropout import FastDropout
from ..models.encoder import SentenceEncoder
from ..views import RowStep

if TYPE_CHECKING:
    from .state import TrainState

__all__ = ["dropout_of", "encoder_of", "rates_of"]

# Name of an additional input: the position of each row in the view. If the rows are encoded in chunks, these positions
# select the ``RowStep`` of each chunk.
ROW = "row"
# Attributes that hold the dropout probability in attention modules without a dropout module (ModernBERT, Llama).
RATES = ("attention_dropout", "dropout_rate")


def encoder_of(
    view: View,
    encoder: SentenceEncoder,
    state: TrainState,
    tokens: Mapping[str, Tensor],
    step: Callable[[Tensor], RowStep],
) -> tuple[Callable[[dict[str, Tensor]], Tensor], Mapping[str, Tensor]]:
    """Returns the function that encodes the rows of a view, and the inputs of this function.

    Args:
        view: The view.
        encoder: The encoder of the view.
        state: The state of the run, which holds the hooks.
        tokens: Inputs of the transformer, ``(n, T)`` each.
        step: Function that returns the ``RowStep`` of the rows at the given positions.
    """
    if view.dropout is None and view.hook is None:
        return encoder, tokens
    hook = None if view.hook is None else state.hooks[view.hook]

    def encode(inputs: dict[str, Tensor]) -> Tensor:
        inputs = dict(inputs)
        with dropout_of(encoder.backbone, view.dropout):
            if hook is None:
                return encoded(inputs)
            facts = step(inputs.pop(ROW)[:, 0])
            if view.draws:
                uniform = facts.uniform
                facts = replace(facts, draws=view.draws, uniform=lambda name, count: uniform(view.draws + name, count))
            inputs = hook.tokens(inputs, facts)
            return encoded(inputs, hooked(hook, encoder.backbone, inputs, facts))

    def encoded(inputs: dict[str, Tensor], around: AbstractContextManager[None] | None = None) -> Tensor:
        z: Tensor = encoder(inputs, around)
        return z

    if hook is None:
        return encode, tokens
    ids = tokens["input_ids"]
    return encode, {**tokens, ROW: torch.arange(len(ids), device=ids.device)[:, None]}


@contextmanager
def dropout_of(backbone: nn.Module, probability: float | None) -> Iterator[None]:
    """Context manager in which a transformer has the given dropout probability; None: it is unchanged."""
    if probability is None:
        yield
        return
    before = rates_of(backbone)
    try:
        for module, name, _ in before:
            setattr(module, name, probability)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def rates_of(backbone: nn.Module) -> list[tuple[Any, str, float]]:
    """Returns the dropout probabilities in a transformer: the module, the name of the attribute, and its value."""
    found: list[tuple[Any, str, float]] = []
    for module in backbone.modules():
        names = ("p",) if isinstance(module, (nn.Dropout, FastDropout)) else RATES
        found += [(module, name, getattr(module, name)) for name in names if isinstance(_own(module, name), float)]
    return found


def _own(module: nn.Module, name: str) -> Any:
    return module.__dict__.get(name)
