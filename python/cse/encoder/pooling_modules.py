"""Poolings as modules of sentence-transformers, with the one that it lacks, and their names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers.sentence_transformer import modules as library
from torch import nn

from .pooling import MODES, pooled_layers

MASK_POOLING = "cse_mask_token"
"""A mode that sentence-transformers does not have, so that it refuses the folder instead of pooling in another way."""


class MaskPooling(library.Pooling):
    """Pools the last mask token, for texts in a template that has one (PromptBERT); a mode of Pooling in a folder."""

    POOLING_MODES = (MASK_POOLING,)
    mask_token: int | None = None

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **settings: Any) -> Any:
        """Returns the pooling that a folder declares; a plain Pooling for other modes."""
        config = cls.load_config(model_name_or_path, subfolder=subfolder, local_files_only=True)
        kind = cls if config.get("pooling_mode") in (MASK_POOLING, [MASK_POOLING]) else library.Pooling
        return kind(**config)

    def on_model_ready(self, model: Any) -> None:
        self.mask_token = model.tokenizer.mask_token_id

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        states = features["token_embeddings"]
        marked = features["input_ids"].eq(self.mask_token).long()
        places = (marked * marked.new_ones(marked.shape).cumsum(1)).argmax(1)
        index = places[:, None, None].expand(-1, 1, states.shape[-1])
        return {**features, "sentence_embedding": states.gather(1, index)[:, 0]}


def pooling_modules(pooler: str, transformer: library.Transformer, include_prompt: bool = True) -> list[nn.Module]:
    """Returns the modules of a pooler, which follow a transformer; see ``cse.encoder.pooling``."""
    size = transformer.get_embedding_dimension()
    layers = pooled_layers(pooler, int(getattr(transformer.config, "num_hidden_layers", 0)))
    if pooler == "mask":
        pooling = MaskPooling(size, MASK_POOLING)
        pooling.mask_token = transformer.tokenizer.mask_token_id
        return [pooling]
    if layers is None:
        modes = [MODES["cls_before_pooler" if part == "cls" else part] for part in pooler.split("+")]
        return [library.Pooling(size, modes, include_prompt=include_prompt)]
    transformer.config.output_hidden_states = True
    weights = torch.zeros(layers[1] + 1 - layers[0])
    weights[[layer - layers[0] for layer in layers]] = 1.0
    averaged = library.WeightedLayerPooling(size, layers[1], layers[0], nn.Parameter(weights, requires_grad=False))
    return [averaged, library.Pooling(size, "mean", include_prompt=include_prompt)]


def pooler_of(pooling: Sequence[nn.Module]) -> str | None:
    """Returns the name of the pooler that consists of these modules; None if it has none in ``cse.encoder.pooling``."""
    if not pooling or not isinstance(pooling[-1], library.Pooling) or len(pooling) > 2:
        return None
    if isinstance(pooling[-1], MaskPooling):
        return "mask"
    modes = pooling[-1].pooling_mode
    names = {theirs: ours for ours, theirs in MODES.items()}
    listed = [modes] if isinstance(modes, str) else list(modes)
    if len(set(listed)) < len(listed):
        return None
    if len(pooling) == 1:
        return "+".join(names[mode] for mode in listed)
    layers: Any = pooling[0]
    weights = layers.layer_weights.tolist()
    used = [layers.layer_start + place for place, weight in enumerate(weights) if weight]
    equal = len({weight for weight in weights if weight}) == 1
    if listed != ["mean"] or not equal:
        return None
    averages = ("avg_first_last", "avg_embed_last", "avg_top2")
    return next((name for name in averages if used == pooled_layers(name, layers.num_hidden_layers)), None)
