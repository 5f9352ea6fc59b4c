"""Pooling of token vectors into one vector per sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["POOLERS", "pool", "pooled_layers"]

POOLERS = {
    "cls": "last hidden state of the first token, through the trained pooler where the checkpoint has one",
    "cls_before_pooler": "last hidden state of the first token",
    "avg": "mean over tokens of the last layer",
    "avg_top2": "mean over tokens of the last two layers",
    "avg_first_last": "mean over tokens of the first and the last layer",
    "avg_embed_last": "mean over tokens of the embeddings and the last layer",
    "mask": "last hidden state of the last mask token, for texts in a template that has one (PromptBERT)",
}
"""Description of each pooler."""


def pooled_layers(pooler: str, layers: int) -> list[int] | None:
    """Returns the indices of the hidden states that are averaged; None if only the last one is used.

    Index 0 is the embedding layer; ``layers`` is the number of transformer blocks.
    """
    return {
        "avg_first_last": [1, layers],
        "avg_embed_last": [0, layers],
        "avg_top2": [layers - 1, layers],
    }.get(pooler)


def pool(
    pooler: str,
    hidden_states: Sequence[Tensor],
    mask: Tensor,
    ids: Tensor | None = None,
    mask_token: int | None = None,
) -> Tensor:
    """Pools token vectors into one vector per sentence.

    Args:
        pooler: ``cls`` and ``cls_before_pooler``: vector of the first token (an MLP head is not applied here). ``avg``:
            mean over tokens of the last layer. ``avg_top2``: mean over tokens of the last two layers.
            ``avg_first_last``: of the first and the last block (SimCSE since its issue 133; 60.73 for plain BERT-base).
            ``avg_embed_last``: of the embedding layer and the last block (56.70; also called "first-last" elsewhere).
            ``mask``: vector of the last mask token.
        hidden_states: Outputs of the embedding layer and of each block, ``(B, T, D)`` each. ``cls``,
            ``cls_before_pooler`` and ``avg`` need only the last.
        mask: ``(B, T)``, 1 for tokens, 0 for padding.
        ids: ``(B, T)`` token ids, for ``mask``.
        mask_token: Id of the mask token, for ``mask``.

    Returns:
        ``(B, D)``.
    """
    last = hidden_states[-1]
    if pooler in ("cls", "cls_before_pooler"):
        return last[:, 0]
    if pooler == "mask" and ids is not None:
        at = ((ids == mask_token) * ids.new_ones(ids.shape).cumsum(1)).argmax(1)  # the last one of a row
        return last.gather(1, at[:, None, None].expand(-1, 1, last.shape[-1]))[:, 0]
    layers = pooled_layers(pooler, len(hidden_states) - 1)
    if layers:
        last = (last + hidden_states[layers[0]]) / 2
    weights = mask.unsqueeze(-1).to(last.dtype)
    return (last * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
