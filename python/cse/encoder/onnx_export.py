"""Export of a model to ONNX."""

from __future__ import annotations

import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from ..errors import InputError, RunError
from ..io import copy_files, fresh_folder, temporary_folder
from .encoder import Encoder
from .layout import best_of_run, files_to_copy, weights_digest
from .light import MADE_FROM, MODEL, NOT_INSTALLED, OUTPUT, PROMPT_LENGTH, TOKENIZER
from .light import ONNX as FOLDER
from .older_names import write_limit
from .pooling import pooled_layers
from .resolve import MINILM, find_model

# Largest difference between embeddings from ONNX and from PyTorch, relative to the largest norm if it is above 1.
TOLERANCE = 1e-4
# Weights of more bytes get a separate file; an ONNX file holds at most 2 GB.
EXTERNAL = 1_500_000_000


@dataclass(frozen=True)
class Exported:
    """The result of an export."""

    folder: str
    file: str
    bytes: int
    """Size of the file, including weights in a separate file."""
    difference: float
    """Largest absolute difference between embeddings of sample sentences from the file and from PyTorch."""


def export_onnx(model: str, output: str | None = None, status: Callable[[str], object] | None = None) -> Exported:
    """Writes ``onnx/model.onnx`` to the folder of a model, provided that its embeddings agree with PyTorch's."""
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            raise InputError(f"cse export --onnx: {NOT_INSTALLED}") from None
    name = best_of_run(model)
    if output is None and (name == MINILM or not Path(name).is_dir()):
        raise InputError(f"{model}: is not a local folder to write to; name a new folder with -o")
    if output is not None and Path(output).exists():
        raise InputError(f"-o {output}: exists; name a new folder")
    source = find_model(name)
    if source.base is not None:
        raise InputError(f"{model}: holds only an adapter; merge it into its base model with peft first")
    pooler = source.pooler or ""
    if pooled_layers(pooler, 2) is not None:
        raise InputError(f"{model}: its pooling ({pooler}) needs several layers, but ONNX files hold only the last one")
    encoder = Encoder(name, device="cpu")
    say = status or (lambda text: None)
    if output is None:
        return _export(encoder, Path(source.path), Path(source.path), say)
    with fresh_folder(Path(output)) as fresh:
        place = Path(source.path)
        # *.bin files are not copied if the folder also holds weights as safetensors.
        twice = ".bin" if any(place.glob("*.safetensors")) else None
        names = [name for name in files_to_copy(place) if name.split("/")[0] != FOLDER and Path(name).suffix != twice]
        copy_files(place, fresh, names)
        write_limit(fresh, int(encoder.max_seq_length))
        return _export(encoder, fresh, Path(output), say)


def _export(encoder: Encoder, folder: Path, final: Path, say: Callable[[str], object]) -> Exported:
    """Exports to a temporary folder and moves the files to ``folder``, which the caller may rename to ``final``."""
    sample = (files("cse") / "resources" / "sample.txt").read_text(encoding="utf8").split("\n")[:32]
    texts = [*sample, "word", " ".join(sample)]  # the last one will be truncated
    prompt = " ".join(texts[0].split()[:4]) + " "
    expected = [encoder.encode(texts, prompt=before) for before in ("", prompt)]

    with temporary_folder(folder / FOLDER) as temporary:
        file = temporary / MODEL
        say("exporting the model")
        own = encoder.tokenizer
        if not hasattr(own, "backend_tokenizer"):
            raise InputError(f"{encoder.given[0]}: has no fast tokenizer, which onnxruntime needs")
        tokenizer = Tokenizer.from_str(own.backend_tokenizer.to_str())
        tokenizer.enable_truncation(int(encoder.max_seq_length), direction=own.truncation_side)
        tokenizer.enable_padding(direction=own.padding_side, pad_id=own.pad_token_id, pad_token=own.pad_token)
        tokenizer.save(str(temporary / TOKENIZER))
        write_onnx(encoder, file, weights_digest(folder))
        say("comparing its embeddings with PyTorch's")
        made = Encoder(f"onnx:{file}", device="cpu")
        found = np.stack([made.encode(texts, prompt=before) for before in ("", prompt)])
        difference = float(np.abs(found - expected).max())
        if not difference <= TOLERANCE * max(1.0, float(np.linalg.norm(expected, axis=-1).max())):
            raise RunError(
                f"{encoder.given[0]}: embeddings of the exported model differ by up to {difference:.2g} from "
                "PyTorch's; nothing was written; please report the type of the model"
            )
        size = sum(path.stat().st_size for path in temporary.glob(f"{MODEL}*"))
        target = folder / FOLDER
        target.mkdir(exist_ok=True)
        for path in sorted(temporary.iterdir(), reverse=True):  # external weights before the file that names them
            os.replace(path, target / path.name)
    return Exported(str(final), str(final / FOLDER / MODEL), size, difference)


class _Whole(nn.Module):
    """All modules of an encoder, with positional inputs; returns the last hidden state and the embedding."""

    def __init__(self, encoder: Encoder, names: list[str]) -> None:
        super().__init__()
        self.transformer, self.after, self.names = encoder[0].model, nn.ModuleList(list(encoder)[1:]), names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        features: dict[str, Any] = dict(zip(self.names, inputs, strict=True))
        length = features.pop(PROMPT_LENGTH, None)
        states: Tensor = self.transformer(**features).last_hidden_state
        features["token_embeddings"] = states
        module: Any
        for module in self.after:
            if length is not None and not getattr(module, "include_prompt", True):
                features[PROMPT_LENGTH] = 1  # any number but 0; the input's is used
                keep = lambda mask, _: mask * (mask.cumsum(1) > length).to(mask.dtype)  # noqa: E731
                module._exclude_prompt_from_mask = keep
            features = module(features)
        return states, features["sentence_embedding"]


def write_onnx(encoder: Encoder, file: Path, made_from: str) -> None:
    """Exports all modules of an encoder to ``file``; batch size and number of tokens stay free.

    ``made_from`` is the ``weights_digest`` of the model, which the file stores.
    """
    tokenizer, transformer = encoder.tokenizer, encoder[0].model
    batch = tokenizer(["a sentence", "another one, which is rather longer"], padding=True, return_tensors="pt")
    accepted = inspect.signature(transformer.forward).parameters
    names = [name for name in tokenizer.model_input_names if name in batch and name in accepted]
    inputs, dims = [batch[name] for name in names], {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    shapes: list[Any] = [dims] * len(names)
    if any(not getattr(module, "include_prompt", True) for module in encoder):
        names, inputs, shapes = [*names, PROMPT_LENGTH], [*inputs, torch.zeros(1, dtype=torch.int64)], [*shapes, None]
    size = sum(p.numel() * p.element_size() for p in encoder.parameters())
    try:
        with _quiet():
            program: Any = torch.onnx.export(
                _Whole(encoder, names).eval(),
                tuple(inputs),
                input_names=names,
                output_names=["last_hidden_state", OUTPUT],
                dynamo=True,
                dynamic_shapes=(tuple(shapes),),
                verbose=False,
            )
            if PROMPT_LENGTH in names:
                import onnx_ir  # a requirement of onnxscript

                graph = program.model.graph
                value = next(value for value in graph.inputs if value.name == PROMPT_LENGTH)
                value.const_value = onnx_ir.tensor(np.zeros(1, dtype=np.int64), name=PROMPT_LENGTH)
                graph.register_initializer(value)
            program.model.metadata_props[MADE_FROM] = made_from
            program.save(file, external_data=size > EXTERNAL)
    except Exception as error:  # the exporter has many exceptions of its own, with hundreds of lines
        kind = getattr(transformer.config, "model_type", "?")
        raise InputError(
            f"models of the type {kind} cannot be exported to ONNX ({type(error).__name__}); use another type of model"
        ) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses warnings, and what the exporter logs and prints; its errors are raised."""
    level = logging.root.manager.disable
    try:
        logging.disable(logging.CRITICAL)
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
