"""Reading and writing the files of a sentence-transformers directory.

=====================================  ====================================================================
``config.json``, ``model.safetensors``  the transformer, as ``AutoModel`` reads it
``tokenizer.json``, ...                 the tokenizer, as ``AutoTokenizer`` reads it
``modules.json``                        the modules in order, each with its type and folder
``sentence_bert_config.json``           ``max_seq_length``
``N_Pooling/config.json``               which tokens are pooled
``N_WeightedLayerPooling/``             which layers are averaged
``N_Dense/``                            the MLP head (linear, tanh) of a model that keeps it
``N_Normalize/``                        present if embeddings are normalised
=====================================  ====================================================================

Module types are written with the names that all releases of sentence-transformers can read. Releases from 5.4 write
different names, which older releases cannot read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._core import __version__
from ..errors import InputError
from .pooling import pooled_layers

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Modules", "read_modules", "write_modules"]

LAYER_POOLING = "WeightedLayerPooling"
# sentence-transformers has no such pooling, and refuses to load it, which is better than another pooling.
MASK_POOLING = "cse_mask_token"


@dataclass(frozen=True)
class Modules:
    """The contents of ``modules.json`` and of the files that it refers to."""

    pooler: str | None = None
    """See ``cse.models.pooling.pool``; None for a directory without ``modules.json``."""
    normalize: bool = False
    max_length: int | None = None
    dense: Path | None = None
    """Folder of a Dense module with tanh after [CLS] pooling; the pooler is then ``cls``."""
    family: str | None = None
    """The model family of the run, if cse wrote the directory; see ``presets/families.toml``."""


def read_modules(folder: Path) -> Modules:
    """Reads the modules of a local directory; raises ``InputError`` for a module that cse does not support."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf8"))
    except FileNotFoundError:
        return Modules()
    pooler: str | None = None
    normalize, limit, dense = False, None, None
    for module in modules:
        kind = module["type"].rsplit(".", 1)[-1]
        part = folder / module["path"]
        if kind == "Transformer":
            settings = part / "sentence_bert_config.json"
            if settings.exists():
                limit = json.loads(settings.read_text(encoding="utf8")).get("max_seq_length")
        elif kind == "Pooling":
            pooler = pooler or _read_pooling(json.loads((part / "config.json").read_text(encoding="utf8")), part)
        elif kind == LAYER_POOLING:
            pooler = _read_layers(part)
        elif kind == "Normalize":
            normalize = True
        elif kind == "Dense" and pooler == "cls_before_pooler":
            settings = json.loads((part / "config.json").read_text(encoding="utf8"))
            if not settings["activation_function"].endswith("Tanh"):
                raise InputError(f"{part}: its activation is not supported by cse, which reads Tanh")
            pooler, dense = "cls", part
        else:
            raise InputError(f"{folder}: its module {kind} is not supported by cse")
    return Modules(pooler, normalize, limit, dense, _stored_family(folder))


def _stored_family(folder: Path) -> str | None:
    try:
        settings = json.loads((folder / "config_sentence_transformers.json").read_text(encoding="utf8"))
    except FileNotFoundError:
        return None
    family = settings.get("cse_family")
    return family if isinstance(family, str) else None


def _read_pooling(settings: dict[str, Any], part: Path) -> str:
    modes = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True}
    if settings.get("pooling_mode") == MASK_POOLING:
        return "mask"
    if isinstance(settings.get("pooling_mode"), str):  # sentence-transformers 5.4 and later
        modes = {"pooling_mode_" + {"mean": "mean_tokens", "cls": "cls_token"}.get(settings["pooling_mode"], "")}
    if modes == {"pooling_mode_cls_token"}:
        return "cls_before_pooler"
    if modes == {"pooling_mode_mean_tokens"}:
        return "avg"
    raise InputError(f"{part}: its pooling is not supported by cse")


def _read_layers(part: Path) -> str:
    from safetensors.torch import load_file

    settings = json.loads((part / "config.json").read_text(encoding="utf8"))
    weights = load_file(part / "model.safetensors")["layer_weights"].tolist()
    start, last = settings["layer_start"], settings["num_hidden_layers"]
    used = [start + i for i, weight in enumerate(weights) if weight]
    if len({weight for weight in weights if weight}) == 1:
        for pooler in ("avg_first_last", "avg_embed_last", "avg_top2"):
            if used == pooled_layers(pooler, last):
                return pooler
    raise InputError(f"{part}: its weighting of layers is not supported by cse")


def write_modules(
    folder: Path,
    *,
    pooler: str,
    normalize: bool,
    max_length: int,
    embedding_dim: int,
    layers: int,
    family: str,
    head: dict[str, Tensor] | None = None,
) -> None:
    """Writes ``modules.json`` and the folders it refers to, but not the transformer and the tokenizer.

    ``head`` has ``weight`` (D, D) and ``bias`` (D,) of a kept MLP head, which is followed by a tanh.
    """
    import torch
    import transformers

    modules = [("", "Transformer")]
    averaged = pooled_layers(pooler, layers)
    if averaged:
        name = f"{len(modules)}_{LAYER_POOLING}"
        _write_layers(folder / name, embedding_dim, layers, averaged)
        modules.append((name, LAYER_POOLING))
    pooling = folder / f"{len(modules)}_Pooling"
    pooling.mkdir()
    by_cls = pooler in ("cls", "cls_before_pooler")
    if pooler == "mask":
        _write_json(pooling / "config.json", {"word_embedding_dimension": embedding_dim, "pooling_mode": MASK_POOLING})
    else:
        _write_json(
            pooling / "config.json",
            {
                "word_embedding_dimension": embedding_dim,
                "pooling_mode_cls_token": by_cls,
                "pooling_mode_mean_tokens": not by_cls,
                "pooling_mode_max_tokens": False,
                "pooling_mode_mean_sqrt_len_tokens": False,
            },
        )
    modules.append((pooling.name, "Pooling"))
    if head is not None:
        name = f"{len(modules)}_Dense"
        _write_dense(folder / name, embedding_dim, head)
        modules.append((name, "Dense"))
    if normalize:
        name = f"{len(modules)}_Normalize"
        (folder / name).mkdir()
        modules.append((name, "Normalize"))
    listing = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listing)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    versions = {"cse": __version__, "transformers": transformers.__version__, "pytorch": torch.__version__}
    _write_json(folder / "config_sentence_transformers.json", {"__version__": versions, "cse_family": family})


def _write_dense(folder: Path, embedding_dim: int, head: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    folder.mkdir()
    tensors = {f"linear.{name}": values.detach().cpu().contiguous() for name, values in head.items()}
    save_file(tensors, folder / "model.safetensors")
    activation = "torch.nn.modules.activation.Tanh"
    settings = {"in_features": embedding_dim, "out_features": embedding_dim, "bias": True}
    _write_json(folder / "config.json", {**settings, "activation_function": activation})


def _write_layers(folder: Path, embedding_dim: int, layers: int, used: list[int]) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    start = used[0]
    weights = torch.zeros(layers + 1 - start)
    weights[[layer - start for layer in used]] = 1.0
    save_file({"layer_weights": weights}, folder / "model.safetensors")
    settings = {"word_embedding_dimension": embedding_dim, "layer_start": start, "num_hidden_layers": layers}
    _write_json(folder / "config.json", settings)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf8")
