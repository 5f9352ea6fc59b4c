"""The files of a sentence-transformers directory, the family of a model, and errors for unsupported kinds of models.

======================================  ====================================================================
``config.json``, ``model.safetensors``  the transformer, as ``AutoModel`` reads it
``tokenizer.json``, ...                 the tokenizer, as ``AutoTokenizer`` reads it
``modules.json``                        the modules in order, each with its type and folder
``sentence_bert_config.json``           ``max_seq_length``
``config_sentence_transformers.json``   prompts, similarity, number of dimensions
``N_Pooling/config.json``               how token vectors are pooled
``N_WeightedLayerPooling/``             which layers are averaged
``N_Dense/``, ``N_LayerNorm/``, ...     the modules after pooling; see ``cse.models.reading.stages``
``N_Normalize/``                        present if embeddings are normalised
======================================  ====================================================================

``cse.models.saving.folder`` writes module types under names that all releases of sentence-transformers can read. The
names that sentence-transformers itself has written since release 5.4 cannot be read by older releases.

The family of a model selects its default recipe in ``presets/defaults.toml``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..pooling import MODES, pooled_layers

ADAPTER = "adapter_config.json"
LAYER_POOLING = "WeightedLayerPooling"
# sentence-transformers has no mode of this name, so it refuses to load the model instead of pooling in another way.
MASK_POOLING = "cse_mask_token"
# The value of Modules.pooler for a StaticEmbedding, which has no transformer; see cse.models.running.static.
STATIC = "static"
# Pooling modes by their keys in older releases of sentence-transformers, in the order in which they are concatenated.
LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
AFTER_POOLING = ("Dense", "LayerNorm", "Dropout", "Normalize")
TRANSFORMER_SETTINGS = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)


@dataclass(frozen=True)
class Stage:
    """A module that follows the pooling."""

    kind: str
    """``Dense``, ``LayerNorm``, ``Dropout`` or ``Normalize``."""
    folder: Path
    settings: dict[str, Any]
    """Contents of the module's ``config.json``."""


@dataclass(frozen=True)
class Modules:
    """The contents of ``modules.json`` and of the files that it refers to."""

    pooler: str | None = None
    """See ``cse.models.pooling.pool``; ``static`` for a StaticEmbedding; None without ``modules.json``."""
    normalize: bool = False
    """Whether the last module is Normalize."""
    max_length: int | None = None
    dense: Path | None = None
    """Folder of the kept MLP head of a cse run: a Dense module with tanh; the pooler is then ``cls``."""
    family: str | None = None
    """The model family (such as ``bert-base``) that a cse run stored; see ``presets/defaults.toml``."""
    stages: tuple[Stage, ...] = ()
    """The modules after pooling, in order, except for ``dense`` and a final Normalize."""
    include_prompt: bool = True
    """Whether the tokens of a prompt are pooled."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts that are put before the sentences, by name."""
    default_prompt: str | None = None
    """Name of the prompt that is used if none is given."""
    similarity: str = "cosine"
    """``cosine``, ``dot``, ``euclidean`` or ``manhattan``."""
    truncate_dim: int | None = None
    """Number of leading dimensions that are used; None: all."""
    dims: tuple[int, ...] = ()
    """Numbers of leading dimensions for which a cse run trained the encoder (Matryoshka)."""
    transformer: str = ""
    """Subfolder of the transformer, or of a StaticEmbedding."""
    lower_case: bool = False
    """Whether texts are converted to lower case before they are tokenized."""


def base_of(folder: Path) -> str | None:
    """Returns the name or path of the base model of a folder that holds only a peft adapter; None for other folders."""
    if not (folder / ADAPTER).is_file() or (folder / "config.json").exists():
        return None
    try:
        return str(read_json(folder / ADAPTER)["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{folder}: {ADAPTER} does not name its base model; save the adapter again") from None


def read_modules(folder: Path) -> Modules:
    """Reads ``modules.json`` of a local directory, if there is one; raises ``InputError`` for unsupported modules."""
    try:
        modules = read_json(folder / "modules.json")
    except FileNotFoundError:
        return Modules()
    found: dict[str, Any] = {}
    pooler: str | None = None
    stages: list[Stage] = []
    for module in modules:
        kind = module["type"].rsplit(".", 1)[-1]
        part = folder / module["path"]
        if kind == "Transformer":
            found |= {"transformer": module["path"], **_read_transformer(part)}
        elif kind == "StaticEmbedding" and pooler is None:
            found["transformer"], pooler = module["path"], STATIC
        elif kind == "Pooling" and (pooler is None or pooler.startswith("avg_")) and not stages:
            settings = read_json(part / "config.json")
            pooler = pooler or _read_pooling(settings, part)
            found["include_prompt"] = settings.get("include_prompt") is not False
        elif kind == LAYER_POOLING and pooler is None:
            pooler = _read_layers(part)
        elif kind in AFTER_POOLING and pooler is not None:
            stages.append(_read_stage(kind, part))
        elif kind in AFTER_POOLING:
            raise InputError(
                f"{folder}: its module {kind} comes before the pooling, as in models with a vector for each token; cse "
                "does not support such models; use a model with one vector for each sentence"
            )
        else:
            raise InputError(f"{folder}: its module {kind} is not supported by cse")
    if pooler is None:
        raise InputError(
            f"{folder}: modules.json has no Pooling module; give the folder of the transformer, and --pooler"
        )
    normalize = bool(stages) and stages[-1].kind == "Normalize"
    stages = stages[:-1] if normalize else stages
    settings = _read_settings(folder)
    # In a directory that cse wrote, a Dense module of this form is a kept MLP head, which a later run may drop.
    if settings.get("family") and pooler == "cls_before_pooler" and len(stages) == 1 and _is_head(stages[0]):
        found["dense"], pooler, stages = stages[0].folder, "cls", []
    return Modules(pooler, normalize, stages=tuple(stages), **found, **settings)


def _read_transformer(part: Path) -> dict[str, Any]:
    path = next((part / name for name in TRANSFORMER_SETTINGS if (part / name).exists()), None)
    settings = {} if path is None else read_json(path)
    task = settings.get("transformer_task", "feature-extraction")
    output = settings.get("module_output_name", "token_embeddings")
    if (
        task != "feature-extraction"
        or output != "token_embeddings"
        or "text" not in settings.get("modality_config", {"text": 1})
    ):
        raise InputError(
            f"{part}: its transformer is used for {task} with the output {output}, but cse needs the "
            "token vectors of a text; use a model for text"
        )
    limit = settings.get("max_seq_length")
    if limit is None and (part / "tokenizer_config.json").exists():  # sentence-transformers since 5.4
        limit = read_json(part / "tokenizer_config.json").get("model_max_length")
        limit = limit if isinstance(limit, int) and limit < 2**31 else None
    return {"max_length": limit, "lower_case": bool(settings.get("do_lower_case", False))}


def _read_stage(kind: str, part: Path) -> Stage:
    path = part / "config.json"
    settings = read_json(path) if path.exists() else {}
    names = {settings.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")}
    if names != {"sentence_embedding"}:
        raise InputError(
            f"{part}: its input and output are {', '.join(sorted(names))}, but cse supports only sentence_embedding"
        )
    return Stage(kind, part, settings)


def _is_head(stage: Stage) -> bool:
    """Returns whether a Dense module has the form of SimCSE's head: square, with a bias and tanh."""
    settings = stage.settings
    square = stage.kind == "Dense" and settings["in_features"] == settings["out_features"]
    plain = settings.get("bias", True) and not settings.get("use_residual", False)
    return bool(square and plain and str(settings.get("activation_function")).endswith(".Tanh"))


def _read_settings(folder: Path) -> dict[str, Any]:
    """Reads ``config_sentence_transformers.json``."""
    try:
        settings = read_json(folder / "config_sentence_transformers.json")
    except FileNotFoundError:
        return {}
    prompts = {str(name): str(text or "") for name, text in (settings.get("prompts") or {}).items()}
    default = settings.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise InputError(f"{folder}: its default prompt {default!r} is not among its prompts; correct the file")
    family = settings.get("cse_family")
    return {
        "family": family if isinstance(family, str) else None,
        "prompts": prompts,
        "default_prompt": default,
        "similarity": settings.get("similarity_fn_name") or "cosine",
        "truncate_dim": settings.get("truncate_dim"),
        "dims": tuple(settings.get("cse_dims") or ()),
    }


def _read_pooling(settings: dict[str, Any], part: Path) -> str:
    mode = settings.get("pooling_mode")  # sentence-transformers 5.4 and later
    if mode == MASK_POOLING:
        return "mask"
    if mode is None:
        mode = [name for key, name in LEGACY_MODES.items() if settings.get(key) is True]
    modes = [mode] if isinstance(mode, str) else list(mode) or ["mean"]
    names = {theirs: ours for ours, theirs in MODES.items()}
    if not all(each in names for each in modes) or len(set(modes)) < len(modes):
        raise InputError(f"{part}: its pooling is not supported by cse")
    return "+".join(names[each] for each in modes)


def _read_layers(part: Path) -> str:
    from safetensors.torch import load_file

    settings = read_json(part / "config.json")
    weights = load_file(part / "model.safetensors")["layer_weights"].tolist()
    start, last = settings["layer_start"], settings["num_hidden_layers"]
    used = [start + i for i, weight in enumerate(weights) if weight]
    if len({weight for weight in weights if weight}) == 1:
        for pooler in ("avg_first_last", "avg_embed_last", "avg_top2"):
            if used == pooled_layers(pooler, last):
                return pooler
    raise InputError(f"{part}: its weighting of layers is not supported by cse")


def read_json(path: Path) -> Any:
    """Reads a JSON file; raises ``OSError`` or ``ValueError`` if that fails."""
    return json.loads(path.read_text(encoding="utf8"))


def write_json(path: Path, value: object) -> None:
    """Writes a value to a JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf8")


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
