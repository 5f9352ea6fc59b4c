"""Encoders that need neither torch nor transformers: static embeddings (NumPy) and ONNX files (onnxruntime).

An ONNX file that ``cse export --onnx`` wrote (extra ``cse[onnx]``) computes the embedding from the tokens. The file
``tokenizer.json`` next to it holds the tokenizer with its truncation and padding. Prompts and the number of dimensions
are those of the folder of the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import InputError, first_line
from .base import TextEncoder, Vectors, one_or_more, unit
from .checking import is_static, kind_of, naming_panics, read_modules, read_settings
from .prompts import plain
from .resolve import best_of_run, find_folder, model_files, naming_model, transformer_folder

ONNX, MODEL, TOKENIZER = "onnx", "model.onnx", "tokenizer.json"
OUTPUT, PROMPT_LENGTH = "sentence_embedding", "prompt_length"
NOT_INSTALLED = "onnxruntime, onnx or onnxscript is not installed; run pip install 'cse[onnx]'"
SUMMARY = "a model exported by cse export --onnx: onnx:FOLDER, or onnx:FOLDER/onnx/FILE.onnx"
STATIC = "mean of the vectors of the tokens (StaticEmbedding)"
Floats = npt.NDArray[np.float32]


def is_light(name: str) -> bool:
    """Returns whether ``LightEncoder`` can be tried for a model: an ``onnx:`` name or a folder of a StaticEmbedding."""
    return name.startswith("onnx:") or is_static(Path(best_of_run(name)))


class LightEncoder(TextEncoder):
    """An encoder of a static embedding, with or without Normalize, or of an ONNX file."""

    device = "cpu"
    precision, precision_reason = "fp32", "the precision of the files"
    pooler = "none"
    summary = SUMMARY
    plain = False
    other = None

    def __init__(self, model: str | PathLike[str], *, prompt: str | None = None, dims: int | None = None) -> None:
        name = fspath(model)
        self.given, self.what = (name, None), name
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

        settings = read_settings(self.folder / "config_sentence_transformers.json")
        self.prompts = {str(key): str(text or "") for key, text in (settings.get("prompts") or {}).items()}
        self.default_prompt_name = settings.get("default_prompt_name")
        self.similarity_name = settings.get("similarity_fn_name") or "cosine"
        self._dims: int | None = settings.get("truncate_dim")
        kinds = [kind_of(entry) for entry in read_modules(self.folder)]
        self._normalizes = kinds[-1:] == ["Normalize"]
        self.max_length: int | None = None
        """The maximum number of tokens of a text; None if there is none."""
        if self.file is not None:
            self.pooling = SUMMARY
            self.session = open_session(self.file)
            outputs = {entry.name: entry.shape for entry in self.session.get_outputs()}
            tokenizer = self.file.with_name(TOKENIZER)
            if OUTPUT not in outputs or not tokenizer.is_file():
                raise InputError(f"{self.file} was not written by this version; repeat cse export --onnx")
            self.tokenizer = Tokenizer.from_file(str(tokenizer))
            self.max_length = (self.tokenizer.truncation or {}).get("max_length")
            self._width = int(outputs[OUTPUT][1])
            return
        if kinds not in (["StaticEmbedding"], ["StaticEmbedding", "Normalize"]):
            raise InputError(f"consists of {', '.join(kinds) or 'a transformer'}, which needs cse.Encoder; use it")
        self.pooling = STATIC
        first = transformer_folder(self.folder)
        self.tokenizer = Tokenizer.from_file(str(first / TOKENIZER))
        self.tokenizer.no_padding()
        self.table = read_table(first)
        self._width = int(self.table.shape[1])

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
        used = [*self.file.parent.glob(f"{self.file.name}*"), self.file.with_name(TOKENIZER)]
        used += [self.folder / name for name in ("config_sentence_transformers.json", "modules.json")]
        return sorted((path.name, path) for path in used if path.exists())

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
        for start in range(0, len(filled), batch_size):
            rows = filled[start : start + batch_size]
            batch = [used + whole[row] for row in rows.tolist()]
            with naming_panics():
                out[rows] = self._mean(batch) if self.file is None else self._run(batch, used)
            if progress:
                progress(len(rows))
        return self._truncated(out, whole)

    def _mean(self, texts: Sequence[str]) -> Floats:
        out = np.zeros((len(texts), self._width), dtype=np.float32)
        for row, encoding in enumerate(self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)):
            if encoding.ids:
                out[row] = self.table[encoding.ids].mean(0, dtype=np.float32)
        return unit(out) if self._normalizes else out

    def _run(self, texts: Sequence[str], prompt: str) -> Floats:
        encoded = self.tokenizer.encode_batch(list(texts))
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        names = [entry.name for entry in self.session.get_inputs()]
        inputs = {name: np.array([getattr(item, fields[name]) for item in encoded], np.int64) for name in names}
        if prompt and any(entry.name == PROMPT_LENGTH for entry in self.session.get_overridable_initializers()):
            # As in sentence-transformers, a special token at the end of the prompt alone is not counted.
            alone = self.tokenizer.encode(prompt)
            ends = bool(alone.special_tokens_mask[sum(alone.attention_mask) - 1])
            inputs[PROMPT_LENGTH] = np.array([sum(alone.attention_mask) - ends], np.int64)
        (vectors,) = self.session.run([OUTPUT], inputs)
        result: Floats = vectors
        return result


def open_onnx(what: str, device: str) -> LightEncoder:
    """Opens ``onnx:WHAT`` for ``cse.Encoder``, which keeps the declared number of dimensions itself."""
    return LightEncoder(f"onnx:{what}")


def open_session(file: Path) -> Any:
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


def read_table(folder: Path) -> Floats:
    """Returns one vector per token, after applying model2vec's ``mapping`` (shared vectors) and ``weights``, if any."""
    from safetensors.numpy import load_file

    if not (folder / "model.safetensors").exists():
        raise InputError(f"{folder.name or folder}: has no model.safetensors; use cse.Encoder")
    weights = load_file(folder / "model.safetensors")
    if "embedding.weight" in weights:
        return weights["embedding.weight"].astype(np.float32)
    rows = weights["embeddings"].astype(np.float32)
    if "mapping" in weights:
        rows = rows[weights["mapping"].astype(np.int64)]
    return rows * weights["weights"].astype(np.float32)[:, None] if "weights" in weights else rows
