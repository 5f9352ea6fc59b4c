"""Layouts of the folders of models, as data: which files they hold, what these are called, and what they must hold.

The folder of a model is one of transformers (``config.json``), of sentence-transformers (``modules.json``, whose
entries name a folder for each module), of a peft adapter (``ADAPTER``), or of a run, whose model is in ``best``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import Any, NotRequired, TypedDict

import cse._core as _core

from ..errors import InputError, shown
from ..io import contents, read_json

MODULES, SETTINGS = "modules.json", "config_sentence_transformers.json"
ADAPTER = "adapter_config.json"
CONFIGS = ("config.json", ADAPTER)
"""Files of which a folder with a model has one."""
WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin")
TOKENIZERS = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "spm.model",
)
NEEDED = {"Transformer": (WEIGHTS, TOKENIZERS), "StaticEmbedding": (WEIGHTS, TOKENIZERS)}
"""Groups of files, by the kind of the first module, of each of which a folder has one. sentence-transformers reads the
files of modules of other kinds, and names the one that is missing."""
WITHOUT_FILES = ("Canine", "ByT5", "Perceiver")
"""Tokenizers of characters or bytes, which have no files."""
SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".jinja", ".bpe", ".codes")
"""Suffixes of the files on which embeddings depend."""
CLASSIFIER = "classifier"
"""Subfolder with the classifier of labels (``cse.classifier.stored``), which copies and uploads hold too."""
SKIPPED = {"onnx", "openvino", "checkpoints", "mlm_head", CLASSIFIER}
"""Subfolders that do not change the embeddings."""
COPIED = (*SUFFIXES, ".onnx", ".data")
ABOUT = ("README", "LICENSE")
"""Suffixes and beginnings of the names of files that a copy of a model holds."""
ON_HUB = ("*.json", "*.txt", "*.model", "*.jinja")
MODULES_ON_HUB = ("*_*/model.safetensors", "*_Dense/pytorch_model.bin", "*_LayerNorm/pytorch_model.bin")
"""Patterns of the files that are downloaded besides the weights of the transformer."""
LENGTHS = {
    "tokenizer_config.json": "model_max_length",
    "sentence_bert_config.json": "max_seq_length",
    SETTINGS: "truncate_dim",
}
"""The settings that hold a number of tokens or dimensions which the libraries use as it is, by file."""
OTHER_MODELS = {
    "CrossEncoder": "scores pairs and has no sentence vectors",
    "SparseEncoder": "has vectors with a dimension for each token of the vocabulary",
    "MultiVectorEncoder": "has a vector for each token",
}
"""Kinds of models of sentence-transformers that have no dense sentence vectors."""
SPARSE = ("SpladePooling", "MLMTransformer", "SparseAutoEncoder", "SparseStaticEmbedding")
"""Modules that only a SparseEncoder has."""


class Module(TypedDict):
    """An entry of ``modules.json``."""

    type: str
    path: str


class Adapter(TypedDict):
    """What an ``adapter_config.json`` of peft must hold."""

    base_model_name_or_path: str
    peft_type: NotRequired[str]


def read_settings(path: Path) -> dict[str, Any]:
    """Returns the contents of a JSON file with an object; an empty dictionary if there is no such file."""
    return read_json(path, dict[str, Any]) if path.is_file() else {}


def read_modules(folder: Path) -> list[Module]:
    """Returns the entries of ``modules.json``; an empty list if there is no such file."""
    path = folder / MODULES
    modules = read_json(path, list[Module]) if path.is_file() else []
    for entry in modules:
        check_inside(path, entry["path"])
    return modules


def check_inside(file: Path, path: str) -> None:
    """Raises ``InputError`` if a path that a file of the folder names is not a path inside the folder."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ":" in path or any(part[0] == "." for part in parts.parts):
        raise InputError(f"{file} names the path {shown(path)}, which is not inside the folder, or hidden")


def kind_of(entry: Module) -> str:
    """Returns the name of the class of an entry of ``modules.json``."""
    return entry["type"].rsplit(".", 1)[-1]


def transformer_folder(folder: Path) -> Path:
    """Returns the folder of the first module, which holds weights and tokenizer; ``folder`` without a modules.json."""
    modules = read_modules(folder)
    return folder / modules[0]["path"] if modules else folder


def is_static(folder: Path) -> bool:
    """Returns whether a folder holds a StaticEmbedding of sentence-transformers."""
    return [kind_of(entry) for entry in read_modules(folder)][:1] == ["StaticEmbedding"]


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER).is_file() and not (folder / "config.json").exists()


def has_config(folder: Path) -> bool:
    return any((folder / name).exists() for name in CONFIGS)


def best_of_run(name: str) -> str:
    """Returns the folder ``best`` if the name is the folder of a run; otherwise returns the name unchanged. Raises
    ``InputError`` if ``best`` is a link to another place."""
    folder, best = Path(name), Path(name) / "best"
    if has_config(folder) or not has_config(best):
        return name
    if best.is_symlink() and not best.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            f"{best}: is a link out of the folder; put a copy in its place, or name the folder it leads to"
        )
    return str(best)


def is_whole(folder: Path) -> bool:
    """Returns whether a folder has the files of ``NEEDED``."""
    modules, first = read_modules(folder), transformer_folder(folder)
    kind = str(read_settings(first / "tokenizer_config.json").get("tokenizer_class"))
    groups = NEEDED.get(kind_of(modules[0]) if modules else "Transformer", ())
    given = (group for group in groups if not (group is TOKENIZERS and kind.startswith(WITHOUT_FILES)))
    return all(any(any(first.glob(name)) for name in group) for group in given)


def model_files(folder: Path, base: str | None = None) -> list[tuple[str, Path]]:
    """Returns the names and paths of the files of a model and its modules and, for an adapter, of the base model."""
    skipped = SKIPPED - {entry["path"].split("/")[0] for entry in read_modules(folder)}
    names = [name for name in contents(folder) if Path(name).suffix in SUFFIXES and name.split("/")[0] not in skipped]
    kept = [(name, folder / name) for name in names]
    if base is not None:
        kept += [(f"{Path(base).name}/{path.name}", path) for path in Path(base).iterdir() if path.is_file()]
    return sorted(kept)


def weights_digest(folder: Path) -> str:
    """Returns a hexadecimal hash of all files of weights of a model, by which an exported file knows its model."""
    weights = [(name, path) for name, path in model_files(folder) if path.suffix in (".safetensors", ".bin")]
    content = [f"{name} {_core.hash_file(str(path))}" for name, path in weights]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def files_to_copy(folder: Path) -> set[str]:
    """Returns the paths, relative to the folder of a model, of the files that a copy of it or an upload holds."""
    return {name for name in contents(folder) if name.endswith(COPIED) or name.startswith(ABOUT)}
