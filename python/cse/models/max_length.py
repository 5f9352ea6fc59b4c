"""The maximum input length of a model, in tokens.

``cse.models.tokens`` truncates texts. The default maximum length in training is in ``presets/defaults.toml``.
"""

from __future__ import annotations

from typing import Any

__all__ = ["first_position", "max_length_of"]

UNKNOWN = 512
"""Maximum length of a model whose configuration states no number of positions."""
# Model types whose position embeddings begin after the padding index.
OFFSET_POSITIONS = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def max_length_of(config: Any, declared: int | None) -> int:
    """Returns the maximum input length: the declared length, but at most the number of usable positions.

    Args:
        config: The configuration of the transformer.
        declared: The maximum length in the files of a sentence-transformers model (see ``cse.models.layout``); None:
            not declared.
    """
    positions = getattr(config, "max_position_embeddings", None) or UNKNOWN
    if config.model_type in OFFSET_POSITIONS:
        positions -= 2  # positions start after the padding index
    if positions <= 0:
        positions = UNKNOWN
    return int(min(declared or positions, positions))


def first_position(config: Any) -> int:
    """Returns the position id of the first token: 0 or, in models like RoBERTa, the padding index + 1."""
    return int(config.pad_token_id) + 1 if config.model_type in OFFSET_POSITIONS else 0
