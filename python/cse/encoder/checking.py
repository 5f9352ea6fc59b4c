"""Reading the settings of a model, and checks that the libraries leave out.

sentence-transformers, transformers and PyTorch refuse code and pickles of a folder, which may come from anybody. This
module refuses models without sentence vectors, paths outside the folder, and more layers than its weights can have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import InputError, first_line, shown
from ..io import read_json

# Kinds of models of sentence-transformers that have no sentence vectors.
MODEL_TYPES = {
    "CrossEncoder": (
        "is a CrossEncoder, which scores pairs and has no sentence vectors; use it with "
        "sentence_transformers.CrossEncoder, and pass a SentenceTransformer to cse"
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
SPARSE = ("SpladePooling", "MLMTransformer", "SparseAutoEncoder", "SparseStaticEmbedding")
REMOTE = (
    "needs Python code from its own repository ({what}), which cse does not run; name a model of a type that "
    "transformers supports, or convert the model to one"
)
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "num_encoder_layers")
WEIGHTS = (".safetensors", ".bin")
MOST_MODULES = 100
LARGEST = 10**8
"""The largest JSON file that is read, in bytes."""


def read_settings(path: Path) -> dict[str, Any]:
    """Returns the contents of a JSON file with an object; an empty dictionary if there is no such file."""
    check_file(path)
    return read_json(path, dict[str, Any]) if path.is_file() else {}


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Returns the entries of ``modules.json``; an empty list if there is no such file."""
    path = folder / "modules.json"
    check_file(path)
    if not path.is_file():
        return []
    listed: list[dict[str, Any]] = read_json(path, list[dict[str, Any]])
    if len(listed) > MOST_MODULES:
        raise InputError(f"modules.json lists {len(listed):,} modules, which no model has")
    for entry in listed:
        if not isinstance(entry.get("type"), str):
            raise InputError("modules.json must hold a list of objects with a type and a path")
        check_inside("modules.json", entry.get("path"))
    if not listed:
        raise InputError("modules.json lists no modules")
    return listed


def check_file(path: Path) -> None:
    """Raises ``InputError`` for a pipe or a device, which may never end, and for JSON of a size that no model has."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path.name} is not a file; remove it")
    if path.suffix == ".json" and path.is_file() and path.stat().st_size > LARGEST:
        raise InputError(f"{path.name} has over {LARGEST // 10**6} MB, which no model has; fetch it again")


def check_inside(file: str, path: Any) -> None:
    """Raises ``InputError`` if a path that a file of the folder names is not a path inside the folder."""
    parts = PurePosixPath(path.replace("\\", "/")) if isinstance(path, str) else None
    if parts is None or parts.is_absolute() or ".." in parts.parts or ":" in path or len(path) > 255:
        raise InputError(f"{file} names the path {shown(path)}, which is not inside the folder")


def kind_of(entry: dict[str, Any]) -> str:
    """Returns the name of the class of an entry of ``modules.json``."""
    return str(entry["type"]).rsplit(".", 1)[-1]


def check_folder(folder: Path) -> None:
    """Raises ``InputError`` for a model of an unsupported kind, and for files outside the folder or without an end."""
    for path in folder.rglob("*"):
        check_file(path)
        if path.name.endswith(".index.json") and path.is_file():
            for file in set(dict(read_settings(path).get("weight_map") or {}).values()):
                check_inside(path.name, file)
    modules = read_modules(folder)
    _check_kind(modules, folder)
    for entry in modules:
        settings = read_settings(folder / str(entry["path"]) / "config.json")
        activation = settings.get("activation_function") or "torch.nn."
        if kind_of(entry) == "Dense" and not str(activation).startswith("torch.nn."):  # else it would be tanh
            raise InputError(
                f"the activation {activation} of a Dense module is not a module of torch.nn; use one that is"
            )


def _check_kind(modules: list[dict[str, Any]], folder: Path) -> None:
    config = read_settings(folder / "config.json")
    kind = read_settings(folder / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
    classifies = any(str(item).endswith("ForSequenceClassification") for item in config.get("architectures") or ())
    scores = config.get("sentence_transformers") is not None or len(config.get("id2label") or ()) == 1
    if classifies and scores and not modules:  # of an older sentence-transformers release
        kind = "CrossEncoder"
    if any(kind_of(entry) in SPARSE for entry in modules):
        kind = "SparseEncoder"
    if kind != "SentenceTransformer":  # sentence-transformers would leave out modules
        other = f"model_type in its config_sentence_transformers.json is {shown(kind)}; set SentenceTransformer"
        raise InputError(MODEL_TYPES.get(str(kind), other))
    for entry in modules:
        # Saved models of cse itself name its class; see ``cse.encoder.modules.MaskPooling``.
        if not str(entry["type"]).startswith("sentence_transformers."):
            raise InputError(REMOTE.format(what=f"the module {entry['type']}"))
    if config.get("auto_map"):
        from transformers import CONFIG_MAPPING

        if str(config.get("model_type")) not in CONFIG_MAPPING:
            raise InputError(REMOTE.format(what="auto_map in its config.json"))


def check_layers(folder: Path, config: Any) -> None:
    """Raises ``InputError`` if a configuration of transformers has no layers, or more than the weights can have."""
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHTS)
    for name in LAYERS:
        count = getattr(config, name, 1)
        if isinstance(count, int) and count < 1:
            raise InputError(f"{name} in its config.json is {count}; a transformer has at least one layer")
        if isinstance(count, int) and count > 64 and count * 256 > stored:
            raise InputError(f"{name} in its config.json is {count:,}, but its weights have only {stored:,} bytes")


@contextmanager
def naming_panics() -> Iterator[None]:
    """Context manager in which a tokenizer that panics, which is no ``Exception``, gives an ``InputError``."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException" or isinstance(error, IndexError):  # or an unknown token
            raise InputError(f"the tokenizer of the model fails ({first_line(error)}); use another model") from None
        raise


def is_static(folder: Path) -> bool:
    """Returns whether a folder holds a StaticEmbedding of sentence-transformers."""
    try:
        modules = read_modules(folder)
    except InputError:
        return False
    return bool(modules) and kind_of(modules[0]) == "StaticEmbedding"
