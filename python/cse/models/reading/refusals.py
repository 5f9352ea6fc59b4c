"""Errors for kinds of models that cse does not support, with advice on what to use instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...errors import InputError
from .layout import read_json

# Kinds of sentence-transformers models, by the value of model_type in config_sentence_transformers.json.
MODEL_TYPES = {
    "CrossEncoder": (
        "is a CrossEncoder, which scores pairs and has no sentence vectors; use it with "
        "sentence_transformers.CrossEncoder for re-ranking, and pass a SentenceTransformer to cse"
    ),
    "SparseEncoder": (
        "is a SparseEncoder, whose vectors have a dimension for each token of the vocabulary; use it with "
        "sentence_transformers.SparseEncoder, and pass a SentenceTransformer with dense vectors to cse"
    ),
    "MultiVectorEncoder": (
        "has a vector for each token; use it with sentence_transformers.MultiVectorEncoder, and pass a "
        "SentenceTransformer with one vector for each sentence to cse"
    ),
}
# Modules that occur only in unsupported kinds of models.
MODULES = {
    "Router": (
        "has a Router, that is, different modules for queries and documents; name the folder of one of its routes, "
        "or a model with a single encoder and different prompts"
    ),
    "SpladePooling": MODEL_TYPES["SparseEncoder"],
    "MLMTransformer": MODEL_TYPES["SparseEncoder"],
    "SparseAutoEncoder": MODEL_TYPES["SparseEncoder"],
    "SparseStaticEmbedding": MODEL_TYPES["SparseEncoder"],
}
MODULES["Asym"] = MODULES["Router"]
REMOTE = (
    "needs Python code from its own repository ({what}), which cse does not run; name a model of a type that "
    "transformers supports, or convert the model to one"
)


def check_kind(name: str, folder: Path) -> None:
    """Raises ``InputError`` if a model is of an unsupported kind, or needs Python code from its repository.

    Args:
        name: The model, as given by the user.
        folder: Its local folder.
    """
    settings, modules, config = (
        _read(folder / file) for file in ("config_sentence_transformers.json", "modules.json", "config.json")
    )
    listed = [str(module.get("type")) for module in modules if isinstance(module, dict)] if modules else []
    problem = MODEL_TYPES.get(settings.get("model_type", "")) if isinstance(settings, dict) else None
    for kind in listed:
        problem = problem or MODULES.get(kind.rsplit(".", 1)[-1])
        if not kind.startswith("sentence_transformers."):
            problem = problem or REMOTE.format(what=f"the module {kind}")
    if isinstance(config, dict):
        classifies = any(str(each).endswith("ForSequenceClassification") for each in config.get("architectures") or ())
        scores = "sentence_transformers" in config or len(config.get("id2label") or ()) == 1
        if classifies and scores and not modules:  # a CrossEncoder of an older sentence-transformers release
            problem = problem or MODEL_TYPES["CrossEncoder"]
        if config.get("auto_map") and not _known_type(str(config.get("model_type"))):
            problem = problem or REMOTE.format(what="auto_map in its config.json")
    if problem:
        raise InputError(f"{name}: {problem}")


def is_static(folder: Path) -> bool:
    """Returns whether a folder holds a StaticEmbedding of sentence-transformers."""
    modules = _read(folder / "modules.json")
    first = modules[0] if isinstance(modules, list) and modules else None
    return isinstance(first, dict) and str(first.get("type")).rsplit(".", 1)[-1] == "StaticEmbedding"


def _known_type(model_type: str) -> bool:
    """Returns whether transformers has a class for the model type; the repository's code is then not needed."""
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def _read(path: Path) -> Any:
    """Returns the contents of a JSON file, or an empty dictionary if it is missing or cannot be read."""
    try:
        return read_json(path)
    except (OSError, ValueError):
        return {}
