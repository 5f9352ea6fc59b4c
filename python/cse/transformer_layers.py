"""Finds the embedding layer and the blocks of a transformer, and modifies the output of the embedding layer.

This module imports only torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def parts_of(backbone: nn.Module) -> tuple[nn.Module, nn.ModuleList]:
    """Returns the embedding layer and the blocks of a transformer; raises ``ValueError`` if they are not found."""
    config: Any = backbone.config
    embedding = getattr(backbone, "embeddings", None) or getattr(backbone, "embed_tokens", None)
    count = getattr(config, "num_hidden_layers", None)
    blocks = [each for each in backbone.modules() if isinstance(each, nn.ModuleList) and len(each) == count]
    if not isinstance(embedding, nn.Module) or not blocks:
        raise ValueError(f"{type(backbone).__name__}: its embedding layer or its blocks cannot be found")
    return embedding, blocks[0]


@contextmanager
def embedding_output(backbone: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context manager that replaces the output ``z`` of the embedding layer, ``(n, T, D)``, with ``change(z)``."""
    handle = parts_of(backbone)[0].register_forward_hook(lambda module, given, output: change(output))
    try:
        yield
    finally:
        handle.remove()
