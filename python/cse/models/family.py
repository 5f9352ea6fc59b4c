"""The family of a model, which selects its default recipe in ``presets/defaults.toml``."""

from __future__ import annotations

from typing import Any

from .layout import Modules

__all__ = ["family_of"]


def family_of(config: Any, modules: Modules, *, is_minilm: bool = False) -> str:
    """Returns the family stored by a cse run, else ``adapt`` for a sentence encoder, else one such as ``bert-base``.

    A model whose folder declares a pooling counts as a sentence encoder, that is, as already trained contrastively.

    Args:
        config: The configuration of the transformer.
        modules: The modules that the folder declares.
        is_minilm: Whether the model is the built-in all-MiniLM-L6-v2, which always counts as a sentence encoder.
    """
    if modules.family is not None:
        return modules.family
    if is_minilm or modules.pooler is not None:
        return "adapt"
    large = getattr(config, "hidden_size", 768) >= 1024
    kind = "roberta" if "roberta" in config.model_type else "bert"
    return f"{kind}-{'large' if large else 'base'}"
