"""Pooling of token vectors into one vector per sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

UNDECLARED = "avg"
"""Pooler for encoding if the folder of a model declares none; for training: ``cse.training.settings.precedence``."""

MODES = {
    "cls_before_pooler": "cls",
    "max": "max",
    "avg": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean",
    "lasttoken": "lasttoken",
}
"""Pooling modes of sentence-transformers by pooler name, in the order in which that library concatenates them."""


class Poolers(dict[str, str]):
    """Descriptions of poolers by name.

    Keys of ``MODES`` joined by ``+`` are names as well: such a pooler concatenates the vectors of its parts.
    """

    def __contains__(self, name: object) -> bool:
        if super().__contains__(name):
            return True
        parts = name.split("+") if isinstance(name, str) else []
        return len(parts) > 1 and len(set(parts)) == len(parts) and all(part in MODES for part in parts)

    def __missing__(self, name: str) -> str:
        if name not in self:
            raise KeyError(name)
        return "; and ".join(self[part] for part in name.split("+"))


POOLERS = Poolers(
    {
        "cls": "last hidden state of the first token, through the trained pooler where the checkpoint has one",
        "cls_before_pooler": "last hidden state of the first token",
        "avg": "mean over tokens of the last layer",
        "avg_top2": "mean over tokens of the last two layers",
        "avg_first_last": "mean over tokens of the first and the last layer",
        "avg_embed_last": "mean over tokens of the embeddings and the last layer",
        "max": "largest value of each dimension over the tokens of the last layer",
        "mean_sqrt_len_tokens": "sum over tokens of the last layer, divided by the square root of their number",
        "weightedmean": "mean over tokens of the last layer, weighted by position (1 for the first token)",
        "lasttoken": "last hidden state of the last token",
        "mask": "last hidden state of the last mask token, for texts in a template that has one (PromptBERT)",
    }
)
"""Description of each pooler."""


def pooler_in_use(given: str | None, declared: str | None) -> str:
    """Returns the pooler with which a model encodes, given ``--pooler`` and the pooling that its folder declares."""
    return given or declared or UNDECLARED


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
    *,
    pooled: Tensor | None = None,
    left: bool = False,
) -> Tensor:
    """Pools token vectors into one vector per sentence.

    Args:
        pooler: ``cls`` and ``cls_before_pooler``: vector of the first token (an MLP head is not applied here). ``avg``:
            mean over tokens of the last layer. ``avg_top2``: mean over tokens of the last two layers.
            ``avg_first_last``: mean over tokens of the first and the last block (as in SimCSE since issue 133 of its
            repository; BERT-base without training then has a mean STS score of 60.73). ``avg_embed_last``: mean over
            tokens of the embedding layer and the last block (score 56.70; elsewhere also called "first-last").
            ``mask``: vector of the last mask token. The other poolers are modes of sentence-transformers; see
            ``MODES``. For keys of ``MODES`` joined by ``+``, the vectors are concatenated.
        hidden_states: Outputs of the embedding layer and of each block, ``(B, T, D)`` each. Only poolers that average
            two layers need more than the last output.
        mask: ``(B, T)``, 1 for tokens, 0 for padding.
        ids: ``(B, T)`` token ids, for the pooler ``mask``.
        mask_token: Id of the mask token, for the pooler ``mask``.
        pooled: ``(B, T)``, 1 for the tokens that are pooled; default: all tokens. ``weightedmean`` counts positions
            from the first token that is not padding, even if that token is not pooled.
        left: Whether rows are padded on the left.

    Returns:
        ``(B, D)``, or ``(B, n D)`` for n joined poolers.
    """
    if "+" in pooler:
        import torch

        parts = [pool(each, hidden_states, mask, pooled=pooled, left=left) for each in pooler.split("+")]
        return torch.cat(parts, dim=-1)
    last = hidden_states[-1]
    if pooler in ("cls", "cls_before_pooler"):
        if pooled is None and not left:
            return last[:, 0]
        return _at(last, (mask if pooled is None else pooled).argmax(1))
    if pooler == "mask" and ids is not None and mask_token is not None:
        return _at(last, _last_of(ids.eq(mask_token)))
    used = mask if pooled is None else pooled
    if pooler == "lasttoken":
        return _at(last * used.unsqueeze(-1).to(last.dtype), _last_of(used))
    if pooler == "max":
        return last.masked_fill(used.unsqueeze(-1) == 0, -float("inf")).amax(1)
    layers = pooled_layers(pooler, len(hidden_states) - 1)
    if layers:
        last = (last + hidden_states[layers[0]]) / 2
    weights = used.unsqueeze(-1).to(last.dtype)
    if pooler == "weightedmean":
        weights = weights * mask.cumsum(1).unsqueeze(-1).to(last.dtype)
    total, count = (last * weights).sum(1), weights.sum(1).clamp(min=1e-9)
    return total / (count.sqrt() if pooler == "mean_sqrt_len_tokens" else count)


def _last_of(chosen: Tensor) -> Tensor:
    """Returns the position ``(B,)`` of the last true value of each row of ``(B, T)``; 0 if there is none."""
    whole = chosen.bool().long()
    return (whole * whole.new_ones(whole.shape).cumsum(1)).argmax(1)


def _at(states: Tensor, places: Tensor) -> Tensor:
    """Returns the vectors ``(B, D)`` at one position in each row of ``(B, T, D)``."""
    return states.gather(1, places[:, None, None].expand(-1, 1, states.shape[-1]))[:, 0]
