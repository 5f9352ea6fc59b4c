"""Encoders that need neither torch nor transformers: static embeddings (NumPy) and ONNX files (onnxruntime)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from os import PathLike, fspath
from pathlib import Path

import numpy as np

from .._core import is_blank
from ..errors import InputError
from ..io import contents
from .base import Calls, TextEncoder, Vectors, unit
from .layout import (
    best_of_run,
    is_static,
    kind_of,
    model_files,
    read_modules,
    read_settings,
    transformer_folder,
    weights_digest,
)
from .prompts import plain
from .resolve import find_folder, naming_model, naming_panics

ONNX, MODEL, TOKENIZER = "onnx", "model.onnx", "tokenizer.json"
MADE_FROM = "cse_made_from"
"""Name in the metadata of an exported file of the ``weights_digest`` of its model."""
OUTPUT, PROMPT_LENGTH = "sentence_embedding", "prompt_length"
NOT_INSTALLED = "onnxruntime, onnx or onnxscript is not installed; run pip install 'cse[onnx]'"
SUMMARY = "a model exported by cse export --onnx: onnx:FOLDER, or onnx:FOLDER/onnx/FILE.onnx"
STATIC = "mean of the vectors of the tokens (StaticEmbedding)"


def is_light(name: str) -> bool:
    """Returns whether ``LightEncoder`` can be tried for a model: an ``onnx:`` name or a folder of a StaticEmbedding."""
    return name.startswith("onnx:") or is_static(Path(best_of_run(name)))


class LightEncoder(TextEncoder):
    """An encoder of a static embedding, with or without Normalize, or of an ONNX file."""

    device = "cpu"
    precision, precision_reason = "fp32", "the precision of the files"
    pooler = "none"
    plain = False
    other = None
    width = 0
    unit_length = False
    max_length: int | None = None

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
            settings = read_settings(self.folder / "config_sentence_transformers.json")
            self.prompts = {str(key): str(text or "") for key, text in (settings.get("prompts") or {}).items()}
            self.default_prompt_name = settings.get("default_prompt_name")
            self.similarity_name = settings.get("similarity_fn_name") or "cosine"
            self.truncate_dim = settings.get("truncate_dim")
            kinds = [kind_of(entry) for entry in read_modules(self.folder)]
            self.unit_length = kinds[-1:] == ["Normalize"]
            self._open_onnx(self.file) if self.file else self._open_static(kinds)
            self._try()
        self._choose_prompt(prompt)
        if dims is not None:
            self.keep_dims(dims)

    def _open_onnx(self, file: Path) -> None:
        from tokenizers import Tokenizer

        try:
            import onnxruntime
        except ImportError:
            raise InputError(f"{file}: {NOT_INSTALLED}") from None
        options = onnxruntime.SessionOptions()
        torch = sys.modules.get("torch")  # its number of threads is set by --threads
        options.intra_op_num_threads = torch.get_num_threads() if torch else 0
        options.log_severity_level = 3  # only errors
        self.session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.pooling = SUMMARY
        outputs = {entry.name: entry.shape for entry in self.session.get_outputs()}
        made_from = self.session.get_modelmeta().custom_metadata_map.get(MADE_FROM)
        tokenizer = file.with_name(TOKENIZER)
        if OUTPUT not in outputs or made_from is None or not tokenizer.is_file():
            raise InputError(f"{file} was not written by this version; repeat cse export --onnx")
        if made_from != weights_digest(self.folder):
            raise InputError(f"{file} was made from other weights than {self.folder} has now; repeat cse export --onnx")
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        if self.tokenizer.padding is None or self.tokenizer.truncation is None:
            raise InputError(f"{tokenizer} does not pad or does not truncate texts; repeat cse export --onnx")
        length, special = self.tokenizer.truncation["max_length"], self.tokenizer.num_special_tokens_to_add(False)
        if length <= special:
            raise InputError(f"{tokenizer}: its maximum length, {length} tokens, leaves no room for text; raise it")
        self.max_length = length
        self.width = int(outputs[OUTPUT][1])

    def _open_static(self, kinds: list[str]) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        if kinds not in (["StaticEmbedding"], ["StaticEmbedding", "Normalize"]):
            raise InputError(f"consists of {', '.join(kinds) or 'a transformer'}, which needs cse.Encoder; use it")
        self.pooling, first = STATIC, transformer_folder(self.folder)
        self.tokenizer = Tokenizer.from_file(str(first / TOKENIZER))
        self.tokenizer.no_padding()
        weights = load_file(first / "model.safetensors")
        rows = weights["embedding.weight" if "embedding.weight" in weights else "embeddings"].astype(np.float32)
        if "mapping" in weights:  # of model2vec: tokens share vectors
            rows = rows[weights["mapping"].astype(np.int64)]
        self.table = rows * weights["weights"].astype(np.float32)[:, None] if "weights" in weights else rows
        self.width = int(self.table.shape[1])

    def files(self) -> list[tuple[str, Path]]:
        """Returns the names and paths of the files that the embeddings depend on."""
        if self.file is None:
            return model_files(self.folder)
        # All files next to it but other graphs: the names of its external weights stand in the file.
        beside = [self.file.parent / name for name in contents(self.file.parent)]
        used = [path for path in beside if path == self.file or path.suffix != self.file.suffix]
        used += [self.folder / name for name in ("config_sentence_transformers.json", "modules.json")]
        return sorted((path.name, path) for path in used if path.exists())

    def _vectors(self, texts: Sequence[str], size: int, prompt: str, task: str | None, calls: Calls) -> Vectors:
        plain(prompt, self.given[0])
        out = np.zeros((len(texts), self.width), dtype=np.float32)
        filled = np.array([row for row, text in enumerate(texts) if not is_blank(text)], dtype=np.int64)
        filled = filled[np.argsort([-len(texts[row]) for row in filled.tolist()], kind="stable")]
        for start in range(0, len(filled), size):
            rows = filled[start : start + size]
            batch = [prompt + texts[row] for row in rows.tolist()]
            with naming_panics():
                out[rows] = self._mean(batch) if self.file is None else self._run(batch, prompt)
            for call in calls:
                call(len(rows))
        return out

    def _mean(self, texts: list[str]) -> Vectors:
        out = np.zeros((len(texts), self.width), dtype=np.float32)
        for row, encoding in enumerate(self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)):
            if encoding.ids:
                out[row] = self.table[encoding.ids].mean(0, dtype=np.float32)
        return unit(out) if self.unit_length else out

    def _run(self, texts: list[str], prompt: str) -> Vectors:
        encoded = self.tokenizer.encode_batch(texts)
        fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
        names = [entry.name for entry in self.session.get_inputs()]
        inputs = {name: np.array([getattr(item, fields[name]) for item in encoded], np.int64) for name in names}
        if prompt and any(entry.name == PROMPT_LENGTH for entry in self.session.get_overridable_initializers()):
            # As in sentence-transformers, a special token at the end of the prompt alone is not counted.
            alone = self.tokenizer.encode(prompt)
            ends = bool(alone.special_tokens_mask[sum(alone.attention_mask) - 1])
            inputs[PROMPT_LENGTH] = np.array([sum(alone.attention_mask) - ends], np.int64)
        vectors = self.session.run([OUTPUT], inputs)[0]
        if vectors.shape != (expected := (len(texts), self.width)):
            raise InputError(
                f"{self.file}: returned {vectors.shape} values for {len(texts)} texts, not {expected}; repeat cse "
                "export --onnx"
            )
        return vectors  # type: ignore[no-any-return]
