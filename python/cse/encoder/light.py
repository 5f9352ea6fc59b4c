"""Encoders that need neither torch nor transformers: static embeddings (NumPy) and ONNX files (onnxruntime).

An ONNX file (extra ``cse[onnx]``) holds only the transformer. ``SentenceTransformer(folder, backend="onnx")`` and
``onnx:FOLDER`` take the tokenizer, the pooling and further modules from the other files of the folder.
``LightEncoder`` reads the same folders as ``cse.Encoder``, if they consist of a StaticEmbedding or an exported
transformer, a Pooling, and Dense, LayerNorm or Normalize; it refuses folders with other modules.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, first_line
from .base import TextEncoder, Vectors, one_or_more, unit
from .checking import cutting, is_static, kind_of, read_json, read_modules
from .encoders import OtherEncoder
from .layout import LEGACY_MODES
from .resolve import best_of_run, find_folder, model_files, naming_model, transformer_folder
from .templates import plain

ONNX, MODEL = "onnx", "model.onnx"
NOT_INSTALLED = "onnxruntime, onnx or onnxscript is not installed; run pip install 'cse[onnx]'"
SUMMARY = "a model exported by cse export --onnx: onnx:FOLDER, or onnx:FOLDER/onnx/FILE.onnx"
STATIC = "mean of the vectors of the tokens (StaticEmbedding)"
Floats = npt.NDArray[np.float32]
Layer = Callable[[Floats], Floats]


def _gelu(x: Floats) -> Floats:
    error = np.vectorize(math.erf, otypes=[np.float32])(x / np.sqrt(np.float32(2)))
    return np.asarray(x * 0.5 * (1 + error), dtype=np.float32)


# Names of the activations of torch.nn that NumPy computes; onnx files of sentence encoders have no others.
ACTIVATIONS: dict[str, Layer] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: np.asarray(1 / (1 + np.exp(-x)), dtype=np.float32),
    "GELU": _gelu,
}
# Keys of config_sentence_transformers.json that change the embeddings, and have defaults.
ROUTED = ("processing_kwargs", "query_expansion", "query_length", "document_length")


def is_light(name: str) -> bool:
    """Returns whether ``LightEncoder`` can be tried for a model: an ``onnx:`` name or a folder of a StaticEmbedding."""
    return name.startswith("onnx:") or is_static(Path(best_of_run(name)))


class LightEncoder(TextEncoder):
    """An encoder of a static embedding, or of an ONNX file, for queries and small sets of texts.

    Args:
        model: Folder of a StaticEmbedding, ``onnx:FOLDER`` or ``onnx:FOLDER/onnx/FILE.onnx``.
        prompt: See ``cse.Encoder``.
        dims: See ``cse.Encoder``.

    Raises:
        InputError: If the files cannot be read, or the model has modules that this class does not compute.
    """

    similarity_name = "cosine"
    device = "cpu"
    precision, precision_reason = "fp32", "the precision of the files"
    plain = False
    other = None

    def __init__(self, model: str | PathLike[str], *, prompt: str | None = None, dims: int | None = None) -> None:
        name = fspath(model)
        self.given = name, None
        self.file: Path | None = None
        if name.startswith("onnx:"):
            path = Path(name.removeprefix("onnx:"))
            self.file = path if path.suffix == ".onnx" else Path(best_of_run(str(path))) / ONNX / MODEL
            if not self.file.is_file():
                raise InputError(f"{name}: {self.file} does not exist; write it with cse export FOLDER --onnx")
        self.folder = find_folder(str(self.file.parent.parent) if self.file else name)
        with naming_model(name, self.folder):
            self._read()
            self._try()
        self._choose_prompt(prompt)
        self.keep_dims(dims) if dims is not None else None

    def _read(self) -> None:
        from tokenizers import Tokenizer

        folder, settings = self.folder, read_json(self.folder / "config_sentence_transformers.json")
        self.prompts = {str(key): str(text or "") for key, text in (settings.get("prompts") or {}).items()}
        self.default_prompt_name = settings.get("default_prompt_name")
        self.similarity_name = settings.get("similarity_fn_name") or "cosine"
        self._dims: int | None = settings.get("truncate_dim")
        first = transformer_folder(folder)
        self.tokenizer = Tokenizer.from_file(str(first / "tokenizer.json"))
        self.tokenizer.no_padding()
        listed = read_modules(folder)
        kinds = [kind_of(entry) for entry in listed]
        parts = [folder / str(entry["path"]) for entry in listed]
        self._normalizes = kinds[-1:] == ["Normalize"]
        self._include_prompt = True
        if self.file is None and kinds[:1] == ["StaticEmbedding"]:
            self.pooling, self.pooler, after = STATIC, "none", 1
            self.table = folded(read_weights(first))
            self._width = int(self.table.shape[1])
        elif self.file is not None and kinds[:2] in ([], ["Transformer", "Pooling"]):
            after = 2
            self._read_transformer(first, read_json(parts[1] / "config.json") if parts else {})
        else:
            raise InputError(f"consists of {', '.join(kinds) or 'a transformer'}, which needs cse.Encoder; use it")
        self.layers = [self._layer(kind, part) for kind, part in zip(kinds[after:], parts[after:], strict=True)]

    def _read_transformer(self, first: Path, pooling: dict[str, Any]) -> None:
        from .pooling import MODES

        config = read_json(first / "config.json")
        names = {theirs: ours for ours, theirs in MODES.items()}
        kinds = config.get("architectures") or [""]
        default = ["lasttoken" if not pooling and str(kinds[0]).endswith("ForCausalLM") else "mean"]
        modes = pooling.get("pooling_mode") or [mode for key, mode in LEGACY_MODES.items() if pooling.get(key) is True]
        self.modes = [modes] if isinstance(modes, str) else list(modes) or default
        if unknown := [mode for mode in self.modes if mode not in names]:
            raise InputError(f"pools by {unknown[0]}, which needs cse.Encoder; use it")
        self.pooler = "+".join(names[mode] for mode in self.modes)
        self.pooling = SUMMARY
        self._include_prompt = pooling.get("include_prompt") is not False
        settings, tokens = read_json(first / "sentence_bert_config.json"), read_json(first / "tokenizer_config.json")
        if any(settings.get(name) for name in ROUTED) or settings.get("do_lower_case"):
            raise InputError("has settings of its tokenizer that need cse.Encoder; use it")
        places = int(config.get("max_position_embeddings") or 512)
        places = 512 if places < 1 else places  # XLNet has -1
        declared = settings.get("max_seq_length") or tokens.get("model_max_length")
        # In models like RoBERTa, whose padding token is the second one, positions begin after it.
        padding = 2 if declared is None and config.get("pad_token_id") == 1 else 0
        self.max_length = int(min(declared or math.inf, places - padding))
        self.tokenizer.enable_truncation(self.max_length, direction=tokens.get("truncation_side", "right"))
        self._special = {
            token["id"] for token in json.loads(self.tokenizer.to_str())["added_tokens"] if token["special"]
        }
        pad = tokens.get("pad_token")
        content = pad.get("content") if isinstance(pad, dict) else pad
        padding_id = self.tokenizer.token_to_id(content) if content else None
        self.tokenizer.enable_padding(direction=tokens.get("padding_side", "right"), pad_id=padding_id or 0)
        self.session = open_session(self.file)
        self._names = [entry.name for entry in self.session.get_inputs()]
        self._width = int(config.get("hidden_size") or config["dim"]) * len(self.modes)

    def _layer(self, kind: str, part: Path) -> Layer:
        """Returns the function of a module after the pooling."""
        if kind == "Normalize":
            return unit
        if kind == "Dropout":
            return lambda x: x
        if kind not in ("Dense", "LayerNorm"):
            raise InputError(f"has the module {kind}, which needs cse.Encoder; use it")
        weights = read_weights(part)
        settings = read_json(part / "config.json")
        if kind == "LayerNorm":
            scale, shift = weights["norm.weight"], weights["norm.bias"]

            def norm(x: Floats) -> Floats:
                centred = x - x.mean(1, keepdims=True)
                normed: Floats = centred / np.sqrt(centred.var(1, keepdims=True) + np.float32(1e-5)) * scale + shift
                return normed

            return norm
        name = str(settings.get("activation_function") or "Tanh").rsplit(".", 1)[-1]
        reads = {settings.get(key) or "sentence_embedding" for key in ("module_input_name", "module_output_name")}
        if name not in ACTIVATIONS or reads != {"sentence_embedding"}:
            raise InputError(f"has a Dense module with {name}, which needs cse.Encoder; use it")
        matrix, bias = weights["linear.weight"].T, weights.get("linear.bias", np.float32(0))
        self._width, activation = int(matrix.shape[1]), ACTIVATIONS[name]
        if not settings.get("use_residual"):
            return lambda x: activation(x @ matrix + bias)
        direct = weights["residual.weight"].T if "residual.weight" in weights else None
        return lambda x: activation(x @ matrix + bias) + (x if direct is None else x @ direct)

    @property
    def width(self) -> int:
        return self._width

    @property
    def unit_length(self) -> bool:
        return self._normalizes

    @property
    def dims(self) -> int | None:
        return self._dims

    def keep_dims(self, dims: int | None) -> None:
        """Sets the number of leading dimensions to keep; see ``cse.Encoder.keep_dims``."""
        self._dims, self._rescaled = self._checked_dims(dims), self.unit_length

    def files(self) -> list[tuple[str, Path]]:
        """Returns the names and paths of the files that the embeddings depend on."""
        if self.file is None:
            return model_files(self.folder)
        others = [(path.name, path) for name, path in model_files(self.folder) if "/" in name or path.suffix == ".json"]
        return sorted([*others, *((path.name, path) for path in self.file.parent.glob(f"{self.file.name}*"))])

    @one_or_more
    def encode(
        self,
        texts: Iterable[str] | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 64,
        *,
        progress: Callable[[int], None] | None = None,
        task: str | None = None,
    ) -> Vectors:
        """Encodes texts into embeddings ``(n, D)`` float32; see ``cse.Encoder.encode``. ``task`` has no effect."""
        whole, used = self._checked(texts, prompt_name, prompt, batch_size)
        plain(used, self.given[0])
        out = np.zeros((len(whole), self._width), dtype=np.float32)
        filled = np.array([row for row, text in enumerate(whole) if text.strip()], dtype=np.int64)
        filled = filled[np.argsort([-len(whole[row]) for row in filled.tolist()], kind="stable")]
        pooled = self._static if self.file is None else self._transformed
        for start in range(0, len(filled), batch_size):
            rows = filled[start : start + batch_size]
            with cutting():
                vectors = pooled([used + whole[row] for row in rows.tolist()], used)
            for layer in self.layers:
                vectors = layer(vectors)
            out[rows] = vectors
            if progress:
                progress(len(rows))
        return self._truncated(out, whole)

    def _static(self, texts: Sequence[str], prompt: str) -> Floats:
        encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        out = np.zeros((len(texts), self.table.shape[1]), dtype=np.float32)
        for row, encoding in enumerate(encoded):
            if encoding.ids:
                out[row] = self.table[encoding.ids].mean(0, dtype=np.float32)
        return out

    def _transformed(self, texts: Sequence[str], prompt: str) -> Floats:
        encoded = self.tokenizer.encode_batch(list(texts))
        inputs = {
            "input_ids": np.array([item.ids for item in encoded], dtype=np.int64),
            "attention_mask": np.array([item.attention_mask for item in encoded], dtype=np.int64),
            "token_type_ids": np.array([item.type_ids for item in encoded], dtype=np.int64),
        }
        (states,) = self.session.run(["last_hidden_state"], {name: inputs[name] for name in self._names})
        mask = inputs["attention_mask"]
        places = mask.cumsum(1) * mask
        used = mask
        if not self._include_prompt and prompt:
            ids = self.tokenizer.encode(prompt).ids
            used = mask * (places > len(ids) - (ids[-1] in self._special))
        return np.concatenate([pool(mode, states, used, places) for mode in self.modes], axis=1)


class Onnx(OtherEncoder):
    """A model whose transformer is run by onnxruntime on the CPU (``onnx:FOLDER`` or ``onnx:FOLDER/onnx/FILE.onnx``).

    Raises ``InputError`` if the file does not exist or cannot be loaded, or onnxruntime is not installed.
    """

    summary = SUMMARY

    def __init__(self, what: str, device: str) -> None:
        super().__init__(what, device)
        self.light = LightEncoder(f"onnx:{what}")
        self.dims = self.light.dims
        """The number of leading dimensions that the model declares; ``cse.Encoder`` keeps them."""
        self.light.keep_dims(None)

    @property
    def embedding_dim(self) -> int:
        return self.light.width

    def encode(self, texts: Sequence[str], *, precision: str = "fp32", **settings: Any) -> Floats:
        """Returns the embeddings ``(n, D)``, computed in the precision of the file."""
        vectors: Floats = self.light.encode(texts, **{"prompt": "", **settings})
        return vectors

    def files(self) -> list[Path]:
        return [path for _, path in self.light.files()]


def pool(mode: str, states: Floats, mask: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> Floats:
    """Pools token vectors ``(B, T, H)`` into ``(B, H)`` as the Pooling of sentence-transformers does.

    Args:
        mode: One of its modes.
        states: The token vectors.
        mask: ``(B, T)``, 1 for tokens that are pooled.
        places: ``(B, T)``, the number of each token in its text, from 1; 0 for padding.
    """
    rows = np.arange(len(states))
    if mode == "cls":
        pooled: Floats = states[rows, mask.argmax(1)]
        return pooled
    if mode == "lasttoken":
        last = mask.shape[1] - 1 - mask[:, ::-1].argmax(1)
        pooled = states[rows, last] * mask[rows, last][:, None]
        return pooled.astype(np.float32)
    if mode == "max":
        pooled = np.where(mask[..., None] == 1, states, -np.inf).max(1)
        return pooled.astype(np.float32)
    weights = (mask * places if mode == "weightedmean" else mask).astype(np.float32)
    count = np.maximum(weights.sum(1, keepdims=True), np.float32(1e-9))
    total = np.einsum("bt,bth->bh", weights, states)
    pooled = total / (np.sqrt(count) if mode == "mean_sqrt_len_tokens" else count)
    return pooled.astype(np.float32)


def open_session(file: Path | None) -> Any:
    """Opens an ONNX file; raises ``InputError`` if onnxruntime is not installed or the file cannot be loaded."""
    try:
        import onnxruntime
    except ImportError:
        raise InputError(f"{file}: {NOT_INSTALLED}") from None
    options = onnxruntime.SessionOptions()
    torch = sys.modules.get("torch")  # its number of threads is that of the option --threads
    options.intra_op_num_threads = torch.get_num_threads() if torch else 0
    options.log_severity_level = 3  # only errors
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime defines its own exceptions
        raise InputError(f"{file}: cannot be loaded ({first_line(error)}); export it again") from None


def read_weights(part: Path) -> dict[str, Floats]:
    """Returns the weights in ``model.safetensors`` as float32; integers keep their type."""
    from safetensors.numpy import load_file

    if not (part / "model.safetensors").exists():
        raise InputError(f"{part.name or part}: has no model.safetensors; use cse.Encoder")
    weights = load_file(part / "model.safetensors")
    return {k: v.astype(np.float32) if v.dtype.kind == "f" else v for k, v in weights.items()}


def folded(weights: dict[str, Floats]) -> Floats:
    """Returns one vector per token, after applying model2vec's ``mapping`` (shared vectors) and ``weights``, if any."""
    if "embedding.weight" in weights:
        return weights["embedding.weight"]
    rows = weights["embeddings"]
    if "mapping" in weights:
        rows = rows[weights["mapping"].astype(np.int64)]
    result: Floats = rows * weights["weights"][:, None] if "weights" in weights else rows
    return result
