"""The weights of a model as a whole: averaging with the base model, and a hash of everything that embeddings depend on.

Weights of a trained model and of its base model are averaged as in WiSE-FT (Wortsman et al. 2022).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ... import _core
from ..encoders import OtherEncoder
from ..reading.resolve import model_files
from ..running.encoder import SentenceEncoder
from ..running.inference import Encoder


class BaseWeights:
    """A copy of an encoder's weights before training, to be averaged with its trained weights.

    Args:
        encoder: The encoder before training. The trainable weights of its transformer and of the modules after the
            pooling are copied; its MLP head is not, since the base model has none.
        share: Weight of the base model in the average, 0 to 1; if it is 0, nothing is copied or averaged.
    """

    def __init__(self, encoder: SentenceEncoder, share: float) -> None:
        self.share = share
        self._base = [weights.detach().clone() for weights in _weights(encoder)] if share else []

    @contextmanager
    @torch.no_grad()
    def merged(self, encoder: SentenceEncoder) -> Iterator[None]:
        """Sets the weights to (1 - share) * trained + share * base within the context, and restores them on exit."""
        if not self.share:
            yield
            return
        trained = [weights.detach().clone() for weights in _weights(encoder)]
        for weights, base in zip(_weights(encoder), self._base, strict=True):
            weights.lerp_(base, self.share)
        try:
            yield
        finally:
            for weights, own in zip(_weights(encoder), trained, strict=True):
                weights.copy_(own)


def _weights(encoder: SentenceEncoder) -> list[torch.nn.Parameter]:
    """Returns the trainable weights, without the factors A of LoRA updates B A.

    The factors B start at 0, so averaging B alone scales the update.
    """
    named = [*encoder.backbone.named_parameters(), *encoder.stages.named_parameters()]
    return [weights for name, weights in named if weights.requires_grad and ".lora_A." not in name]


def model_digest(encoder: Encoder, prompt: str | None = None) -> str:
    """Returns a hexadecimal hash of a model's files (such as weights and tokenizer), pooling, dimensions and prompt.

    The path of the folder does not affect the hash, so a model can be moved. The prompt is ``prompt`` if it is given,
    else the prompt of the encoder.
    """
    model = encoder.model
    name = type(model).__name__
    if isinstance(model, OtherEncoder):
        # ``what`` can hold paths and options (MODEL@FILE@DIMS for whitening); of a path, only the last part is used.
        name += " " + re.sub(r"[^@]*/", "", model.what)
        files = [(path.name, path) for path in model.files()]
    else:
        files = model_files(model.source)
    content = [
        name,
        encoder.pooling,
        str(encoder.embedding_dim),
        str(getattr(encoder, "prompt", "")) if prompt is None else prompt,
    ]
    content += sorted(f"{name} {_core.hash_file(str(path))}" for name, path in files)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]
