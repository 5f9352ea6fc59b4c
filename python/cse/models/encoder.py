"""The encoder: a transformer, a pooling, a head for training alone, and the directory it is saved as."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import InputError
from ..io import file_mode, naming
from .resolve import Source

__all__ = ["SentenceEncoder", "load_encoder", "pool", "save_encoder", "tokenize"]


def pool(pooler: str, hidden_states: Sequence[Tensor], mask: Tensor) -> Tensor:
    """One vector per sentence.

    Args:
        pooler: ``cls`` and ``cls_before_pooler``: the first token's vector (``cls`` has an MLP head in training).
            ``avg``: mean over tokens of the last layer; ``avg_top2``: of the last two layers' mean;
            ``avg_first_last``: of the first block's and the last's (SimCSE since its issue 133; 60.73 for plain
            BERT-base); ``avg_embed_last``: of the embedding layer's and the last's (56.70; also called
            "first-last" in the wild).
        hidden_states: embedding layer, then each block: ``(B, T, D)`` each.
        mask: ``(B, T)``, 1 for tokens, 0 for padding.

    Returns:
        ``(B, D)``.
    """
    last = hidden_states[-1]
    if pooler in ("cls", "cls_before_pooler"):
        return last[:, 0]
    if pooler == "avg_top2":
        last = (last + hidden_states[-2]) / 2
    elif pooler == "avg_first_last":
        last = (last + hidden_states[1]) / 2
    elif pooler == "avg_embed_last":
        last = (last + hidden_states[0]) / 2
    weights = mask.unsqueeze(-1).to(last.dtype)
    return (last * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int) -> dict[str, Tensor]:
    """Token ids and masks ``(B, T)``, padded to the longest of the batch.

    A fast tokenizer keeps the limit of its last call: two threads must not share one.
    """
    return dict(tokenizer(list(texts), padding=True, truncation=True, max_length=max_length, return_tensors="pt"))


class SentenceEncoder(nn.Module):
    """A transformer with pooling; with ``pooler="cls"``, an MLP (linear, tanh) that training alone sees."""

    def __init__(self, backbone: Any, tokenizer: Any, source: Source, pooler: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.source = source
        self.pooler = pooler
        width = backbone.config.hidden_size
        self.head: nn.Sequential | None = None
        if pooler == "cls":
            dense = nn.Linear(width, width)
            nn.init.normal_(dense.weight, std=getattr(backbone.config, "initializer_range", 0.02))
            nn.init.zeros_(dense.bias)
            self.head = nn.Sequential(dense, nn.Tanh())

    @property
    def width(self) -> int:
        """D."""
        return int(self.backbone.config.hidden_size)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Token ids to ``(B, D)``; the head is applied in training mode only."""
        outputs = self.backbone(**batch, output_hidden_states=self.pooler.startswith("avg_"))
        states = outputs.hidden_states or (outputs.last_hidden_state,)
        pooled = pool(self.pooler, states, batch["attention_mask"])
        return self.head(pooled) if self.head is not None and self.training else pooled

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
    ) -> npt.NDArray[np.float32]:
        """``(n, D)`` float32 as users get it: no dropout, no head, normalised if the model is, cut at its own limit.

        Sentences are sorted by length first, so that little is padded; ``progress`` hears how many are done.
        """
        was_training = self.training
        self.eval()
        device = next(self.parameters()).device
        order = np.argsort([-len(text) for text in texts], kind="stable")
        out = np.empty((len(texts), self.width), dtype=np.float32)
        for start in range(0, len(texts), batch_size):
            rows = order[start : start + batch_size]
            batch = tokenize(self.tokenizer, [texts[row] for row in rows], self.source.max_length)
            vectors = self({key: value.to(device) for key, value in batch.items()}).float()
            if self.source.normalize:
                vectors = nn.functional.normalize(vectors, dim=-1)
            out[rows] = vectors.cpu().numpy()
            if progress:
                progress(len(rows))
        self.train(was_training)
        return out


def load_encoder(source: Source, pooler: str) -> SentenceEncoder:
    """Loads weights in float32; anything missing from them but an unused BERT pooler is an error."""
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backbone, report = AutoModel.from_pretrained(source.path, local_files_only=True, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(source.path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        raise InputError(f"--model {source.name}: cannot be loaded ({str(error).splitlines()[0]})") from None
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise InputError(
            f"--model {source.name}: {len(missing)} weights are not in its files ({missing[0]}, ...); "
            "it is not a whole encoder"
        )
    return SentenceEncoder(backbone.float(), tokenizer, source, pooler)


def save_encoder(model: SentenceEncoder, folder: Path, card: str) -> None:
    """Writes a directory that AutoModel, AutoTokenizer and SentenceTransformer load; whole or not at all.

    The head is left out: it serves training alone. Module types are written under the names every release of
    sentence-transformers reads.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".cse-", dir=folder.parent))
    try:
        with naming(folder):
            _write(model, fresh, card)
        fresh.chmod(file_mode() | (file_mode() & 0o444) >> 2)  # who may read may enter
        (fresh / "model.safetensors").chmod(file_mode())
        old = folder.with_name(f".{folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            os.replace(folder, old)
        os.replace(fresh, folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _write(model: SentenceEncoder, folder: Path, card: str) -> None:
    import transformers

    backbone, source = model.backbone, model.source
    layers = int(backbone.config.num_hidden_layers)
    mixed_layers = {
        "avg_first_last": [1, layers],
        "avg_embed_last": [0, layers],
        "avg_top2": [layers - 1, layers],
    }.get(model.pooler)
    # SentenceTransformer hands on the layers only if the configuration asks for them.
    asked = backbone.config.output_hidden_states
    backbone.config.output_hidden_states = mixed_layers is not None
    backbone.save_pretrained(folder)
    backbone.config.output_hidden_states = asked
    # Batches leave their truncation and padding in a fast tokenizer; the saved one is to have none.
    model.tokenizer.backend_tokenizer.no_truncation()
    model.tokenizer.backend_tokenizer.no_padding()
    limit, model.tokenizer.model_max_length = model.tokenizer.model_max_length, source.max_length
    model.tokenizer.save_pretrained(folder)
    model.tokenizer.model_max_length = limit

    modules = [("", "Transformer")]
    if mixed_layers:
        _write_layers(folder / f"{len(modules)}_WeightedLayerPooling", model.width, layers, mixed_layers)
        modules.append((f"{len(modules)}_WeightedLayerPooling", "WeightedLayerPooling"))
    pooling = folder / f"{len(modules)}_Pooling"
    pooling.mkdir()
    by_cls = model.pooler in ("cls", "cls_before_pooler")
    _json(
        pooling / "config.json",
        {
            "word_embedding_dimension": model.width,
            "pooling_mode_cls_token": by_cls,
            "pooling_mode_mean_tokens": not by_cls,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    modules.append((pooling.name, "Pooling"))
    if source.normalize:
        (folder / f"{len(modules)}_Normalize").mkdir()
        modules.append((f"{len(modules)}_Normalize", "Normalize"))
    listing = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(modules)
    ]
    _json(folder / "modules.json", listing)
    _json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": source.max_length, "do_lower_case": False},
    )
    versions = {"transformers": transformers.__version__, "pytorch": torch.__version__}
    _json(folder / "config_sentence_transformers.json", {"__version__": versions})
    (folder / "README.md").write_text(card, encoding="utf8")


def _write_layers(folder: Path, width: int, layers: int, used: list[int]) -> None:
    from safetensors.torch import save_file

    folder.mkdir()
    start = used[0]
    weights = torch.zeros(layers + 1 - start)
    weights[[layer - start for layer in used]] = 1.0
    save_file({"layer_weights": weights}, folder / "model.safetensors")
    settings = {"word_embedding_dimension": width, "layer_start": start, "num_hidden_layers": layers}
    _json(folder / "config.json", settings)


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf8")
