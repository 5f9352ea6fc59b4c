"""A static encoder as a transformers model without layers, so that it is trained like a transformer.

``StaticEncoder`` (``cse.models.running.static``) runs a static encoder; this model computes the same embeddings with
padded batches, which training, hooks, gradient caching and checkpoints need.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from ...errors import InputError, first_line
from ..reading.resolve import Source
from ..reading.stages import read_weights
from .static import folded

DROPOUT = 0.1


class StaticConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """The configuration of a ``StaticBackbone``.

    Args:
        vocab_size: V, the number of token vectors.
        hidden_size: D, the number of dimensions of a vector.
        dropout: Probability with which the vector of a token is set to 0 in training.
        settings: Further settings of transformers.
    """

    model_type = "cse_static"

    def __init__(self, vocab_size: int = 0, hidden_size: int = 0, dropout: float = DROPOUT, **settings: Any) -> None:
        super().__init__(**settings)
        self.vocab_size, self.hidden_size, self.dropout = vocab_size, hidden_size, dropout
        self.num_hidden_layers = 0


class StaticBackbone(PreTrainedModel):  # type: ignore[no-untyped-call]
    """Looks up the vectors of the tokens; pooled by ``avg``, they are the embedding of a ``StaticEncoder``.

    In training, whole tokens are dropped at random: dropout of single components would average out in the mean over the
    tokens. Vectors that are 0, like those of special tokens, are not trained: the direction of the embedding of a text
    without other tokens is not defined, so its gradient would not be finite.

    Args:
        config: The configuration.
    """

    config_class = StaticConfig
    base_model_prefix = ""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList()  # hooks look for the list of blocks
        self.post_init()  # type: ignore[no-untyped-call]

    def get_input_embeddings(self) -> nn.Module:
        """Returns the embedding layer."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replaces the embedding layer."""
        self.embeddings = value  # type: ignore[assignment]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> BaseModelOutput:
        """Returns the vectors ``(B, T, D)`` of tokens ``(B, T)``."""
        vectors = self.embeddings(input_ids.long())  # the ids of a batch without tokens, (B, 0), can be floats
        vectors = vectors * vectors.detach().any(-1, keepdim=True)
        return BaseModelOutput(last_hidden_state=vectors * self.dropout(torch.ones_like(vectors[..., :1])))


def load_static(source: Source) -> StaticBackbone:
    """Loads the vectors of a static encoder in float32; raises ``InputError`` if they cannot be read."""
    try:
        rows = folded(read_weights(Path(source.path)))
    except Exception as error:  # whatever the libraries raise for a damaged file
        why = first_line(error)
        raise InputError(f"{source.name}: the StaticEmbedding cannot be loaded ({why})") from None
    backbone = StaticBackbone(StaticConfig(vocab_size=len(rows), hidden_size=rows.shape[1]))
    with torch.no_grad():
        backbone.embeddings.weight.copy_(rows)
    return backbone


def static_tokenizer(source: Source) -> Any:
    """Loads the tokenizer of a static encoder, which adds no special tokens to a text.

    It pads with a special token, whose vector has no effect. Raises ``InputError`` if the file cannot be read, or if
    there is no special token.
    """
    from tokenizers import Tokenizer

    try:
        settings = json.loads(Tokenizer.from_file(str(Path(source.path) / "tokenizer.json")).to_str())
    except Exception as error:  # tokenizers raises plain Exception
        why = first_line(error)
        raise InputError(f"--model {source.name}: its tokenizer.json cannot be loaded ({why})") from None
    special = [token["content"] for token in settings["added_tokens"] if token["special"]]
    if not special:
        raise InputError(
            f"--model {source.name}: its tokenizer has no special token to pad with; add one, such as [PAD], to the "
            "added_tokens of tokenizer.json"
        )
    unknown, cut = settings["model"].get("unk_token"), settings["truncation"] or {}
    plain = Tokenizer.from_str(json.dumps(settings | {"post_processor": None, "padding": None, "truncation": None}))
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=plain,
        pad_token=next((token for token in special if "pad" in token.lower()), special[0]),
        unk_token=unknown if unknown in special else None,
        truncation_side=cut.get("direction", "right").lower(),
        model_max_length=source.max_length,
        model_input_names=["input_ids", "attention_mask"],
    )
