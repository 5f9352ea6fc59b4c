"""Checks of the files of a model before they are loaded: kinds that cse does not support, paths, and sizes.

A folder may come from anybody. No file is opened as a pickle, no code of the folder runs, and no size that a JSON file
states is allocated unless the weights have it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import InputError, first_line, shown

# Kinds of sentence-transformers models, by the value of model_type in config_sentence_transformers.json.
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
LARGEST = 2**25
"""The largest integer in config.json (a size, a number of positions, the id of a token) that is accepted."""
MANY = {"num_labels": 10**5}
"""Lower limits of single settings, for each of which transformers makes objects."""
LARGEST_FILES = {"tokenizer.json": 10**8, "vocab.json": 10**8, ".json": 2 * 10**7}
"""The largest JSON files that are read, in bytes, by name or suffix."""
PATTERNS = ("target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern", "target_parameters")
"""Settings of an adapter that are regular expressions, or have them as keys."""
GROWTH = 1000
MOST_MODULES = 100
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "num_encoder_layers")
WEIGHTS = (".safetensors", ".bin")
SETTINGS = re.compile(r"(config|sentence_\w+_config|config_sentence_transformers|router_config)\.json")


def read_json(path: Path, kind: type = dict) -> Any:
    """Returns the contents of a JSON file; an empty ``kind`` if there is no such file.

    Raises ``InputError`` if the file cannot be read or holds something else than ``kind``, ``dict`` or ``list``.
    """
    check_file(path)
    try:
        content = json.loads(path.read_text(encoding="utf8"))
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(content, kind):
        raise InputError(f"{path.name} must hold a JSON {'object' if kind is dict else 'array'}")
    return content


def check_file(path: Path) -> None:
    """Raises ``InputError`` for JSON of a size that no model has, and for a pipe or a device, which may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path.name} is not a file; remove it")
    largest = LARGEST_FILES.get(path.name, LARGEST_FILES[".json"])
    if path.suffix == ".json" and path.is_file() and path.stat().st_size > largest:
        raise InputError(f"{path.name} has over {largest // 10**6} MB, which no model has; fetch it again")


def read_modules(folder: Path) -> list[dict[str, Any]]:
    """Returns the entries of ``modules.json``; an empty list if there is no such file.

    Raises ``InputError`` if an entry has no type, or a path that leaves the folder.
    """
    listed = read_json(folder / "modules.json", list)
    if len(listed) > MOST_MODULES:
        raise InputError(f"modules.json lists {len(listed):,} modules, which no model has")
    for entry in listed:
        if not isinstance(entry, dict) or not isinstance(entry.get("type"), str):
            raise InputError("modules.json must hold a list of objects with a type and a path")
        inside("modules.json", entry.get("path"))
    if not listed and (folder / "modules.json").exists():
        raise InputError("modules.json lists no modules")
    return [dict(entry) for entry in listed]


def inside(file: str, path: Any) -> None:
    """Raises ``InputError`` if a path that a file of the folder names is not a path inside the folder."""
    if isinstance(path, str) and "\0" not in path and len(path) < 250:
        parts = PurePosixPath(path.replace("\\", "/"))
        if not parts.is_absolute() and ".." not in parts.parts and ":" not in path:
            return
    raise InputError(f"{file} names the path {shown(path)}, which is not inside the folder")


def kind_of(entry: dict[str, Any]) -> str:
    """Returns the name of the class of an entry of ``modules.json``."""
    return str(entry["type"]).rsplit(".", 1)[-1]


def check_folder(folder: Path) -> None:
    """Raises ``InputError`` for a model of an unsupported kind, and for files that contradict each other.

    The message has no subject; the caller adds the name of the model.
    """
    modules = read_modules(folder)
    settings, config = read_json(folder / "config_sentence_transformers.json"), read_json(folder / "config.json")
    _check_kind(modules, settings, config)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str) or text is None for text in prompts.values()):
        raise InputError("the prompts in config_sentence_transformers.json must be texts by name")
    if default is not None and default not in prompts:
        raise InputError(f"its default prompt {default!r} is not among its prompts; correct the file")
    cut = settings.get("truncate_dim")
    if cut is not None and (isinstance(cut, bool) or not isinstance(cut, int) or not 1 <= cut <= LARGEST):
        raise InputError(f"its truncate_dim is {cut!r}; set a number of dimensions")
    for path in sorted(folder.rglob("*")):
        check_file(path)
        if path.suffix != ".json" or path.is_dir():
            continue
        if path.name.endswith(".index.json"):
            files = read_json(path).get("weight_map")
            for file in set(files.values()) if isinstance(files, dict) else ():
                inside(path.name, file)
        elif SETTINGS.fullmatch(path.name):
            _check_numbers(path, read_json(path))
    for entry in modules:
        _check_module(kind_of(entry), folder / str(entry["path"]))


def _check_kind(modules: list[dict[str, Any]], settings: Any, config: Any) -> None:
    given = settings.get("model_type", "SentenceTransformer")
    kind = str(settings.get("model_type", ""))
    classifies = any(str(item).endswith("ForSequenceClassification") for item in config.get("architectures") or ())
    saved, labels = config.get("sentence_transformers"), len(config.get("id2label") or ())
    if classifies and (saved is not None or labels == 1) and not modules:  # of an older sentence-transformers release
        kind = kind or "CrossEncoder"
    problem = MODEL_TYPES.get(kind)
    if not problem and given != "SentenceTransformer":  # sentence-transformers would leave out modules
        name = "model_type in its config_sentence_transformers.json"
        problem = f"{name} is {shown(given)}; set SentenceTransformer, or use another model"
    for entry in modules:
        if kind_of(entry) in SPARSE:
            problem = problem or MODEL_TYPES["SparseEncoder"]
        # Saved models of cse itself name its class; see ``cse.encoder.pooling_modules.MaskPooling``.
        if not str(entry["type"]).startswith("sentence_transformers."):
            problem = problem or REMOTE.format(what=f"the module {entry['type']}")
    if config.get("auto_map") and not problem:
        from transformers import CONFIG_MAPPING

        if str(config.get("model_type")) not in CONFIG_MAPPING:
            problem = REMOTE.format(what="auto_map in its config.json")
    if problem:
        raise InputError(problem)


def _check_numbers(path: Path, value: Any, name: str = "") -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_numbers(path, item, str(key))
    elif isinstance(value, list):
        for item in value[:1000]:
            _check_numbers(path, item, name)
    elif (
        isinstance(value, int)
        and not isinstance(value, bool)
        and abs(value) > MANY.get(name, LARGEST)
        and "theta" not in name
    ):
        raise InputError(
            f"{name} in {path.name} is {value if abs(value) < 10**20 else 'a number of over 20 digits'}, "
            "which no model has"
        )


def _check_module(kind: str, part: Path) -> None:
    settings = read_json(part / "config.json")
    if kind == "Dense":
        activation = settings.get("activation_function") or "torch."
        if not str(activation).startswith("torch.nn."):
            raise InputError(
                f"the activation {activation} of a Dense module is not a module of torch.nn; use one that is"
            )
    if kind == "WordEmbeddings" and not str(settings.get("tokenizer_class")).startswith("sentence_transformers."):
        raise InputError(REMOTE.format(what=f"the tokenizer {settings.get('tokenizer_class')}"))
    if kind in ("Dense", "LSTM", "CNN", "LayerNorm"):
        sizes = sorted(number for number in _integers(settings) if number > 0)[-2:]
        stored = sum(path.stat().st_size for path in part.glob("*") if path.suffix in WEIGHTS)
        if sizes and sizes[-1] * (sizes[-2] if len(sizes) > 1 else 1) > max(stored, 1):
            raise InputError(f"the sizes in {part.name}/config.json are larger than the weights of the module {kind}")


def _integers(value: Any) -> list[int]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _integers(item)]
    return [value] if isinstance(value, int) and not isinstance(value, bool) else []


def check_adapter(file: str, settings: dict[str, Any]) -> None:
    """Raises ``InputError`` for settings of an adapter, by name, with which peft could take very long to load it.

    These are regular expressions that repeat a repetition, and many iterations of an initialisation.
    """
    if settings.get("peft_type") == "XLORA":
        raise InputError(f"{file} is that of XLORA, a mixture of adapters, which cannot be merged into one model")
    for name, value in settings.items():
        keys = list(value) if isinstance(value, dict) else [value]
        for pattern in filter(lambda item: isinstance(item, str), keys):
            parts = len(re.findall(r"[*+?}]", pattern))
            hard = len(pattern) > 200 or parts > 4 or re.search(r"[)\]}][*+{]", pattern)
            if name in PATTERNS and hard:
                raise InputError(f"the pattern {name} in {file} is too complex; list the names of the layers")
            if name == "init_lora_weights" and re.search(r"\d{3}", pattern):
                raise InputError(f"{name} in {file} is {shown(pattern)}; set it to true")


def check_layers(config: Any) -> None:
    """Raises ``InputError`` if a configuration of transformers has no layers."""
    for name in LAYERS:
        count = getattr(config, name, 1)
        if isinstance(count, int) and count < 1:
            raise InputError(f"{name} in its config.json is {count}; a transformer has at least one layer")


def check_size(folder: Path, config: Any) -> None:
    """Raises ``InputError`` if a configuration describes a model with more weights than the files of a folder hold.

    The model is built without memory for its weights. The number of its layers is checked before.
    """
    import torch
    from transformers import AutoModel

    files = [path for path in folder.iterdir() if path.suffix in WEIGHTS]
    stored = sum(path.stat().st_size for path in files)
    for name in LAYERS:
        count = getattr(config, name, 1)
        if isinstance(count, int) and count > 64 and count * 256 > stored:
            raise InputError(f"{name} in its config.json is {count:,}, but its weights have only {stored:,} bytes")
    with torch.device("meta"):
        model = AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    wanted = sum(parameter.numel() for parameter in model.parameters())
    if wanted > 4 * stored + 10**7:
        raise InputError(
            f"its config.json describes {wanted:,} weights, but its files have only {stored:,} bytes; the two do not "
            "belong together"
        )


def check_tokenizer(tokenizer: Any) -> None:
    """Raises ``InputError`` if a tokenizer of the library tokenizers makes texts over ``GROWTH`` times longer."""
    growth, steps = 1, [_state(getattr(getattr(tokenizer, "backend_tokenizer", tokenizer), "normalizer", None))]
    while steps:
        step = steps.pop()
        steps += step.get("normalizers") or []
        growth *= max(len(step.get("content") or ""), 1) if step.get("type") == "Replace" else 1
    if growth > GROWTH:
        raise InputError("the normalizer in its tokenizer.json replaces characters by long texts; remove it")


def refuse_panic(error: BaseException | None) -> None:
    """Raises ``InputError`` for a panic of the library tokenizers, which is no ``Exception``, or an unknown token."""
    if error is not None and (type(error).__name__ == "PanicException" or isinstance(error, IndexError)):
        raise InputError(f"the tokenizer of the model fails ({first_line(error)}); use another model") from None


@contextmanager
def cutting() -> Iterator[None]:
    """Context manager in which a faulty tokenizer gives an ``InputError``."""
    try:
        yield
    except BaseException as error:
        refuse_panic(error)
        raise


def _state(step: Any) -> dict[str, Any]:
    try:
        return dict(json.loads(step.__getstate__()))
    except Exception:  # none, or one of a program, which no file describes
        return {}


def is_static(folder: Path) -> bool:
    """Returns whether a folder holds a StaticEmbedding of sentence-transformers."""
    try:
        modules = read_modules(folder)
    except InputError:
        return False
    return bool(modules) and kind_of(modules[0]) == "StaticEmbedding"
