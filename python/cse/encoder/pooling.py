"""Names of the poolings of token vectors into one vector per sentence; ``pooling_modules`` makes the modules."""

from __future__ import annotations

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
    """Descriptions of poolers by name."""

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


def pooled_layers(pooler: str, layers: int) -> list[int] | None:
    """Returns the indices of the hidden states that are averaged; None if only the last one is used."""
    return {
        "avg_first_last": [1, layers],
        "avg_embed_last": [0, layers],
        "avg_top2": [layers - 1, layers],
    }.get(pooler)
