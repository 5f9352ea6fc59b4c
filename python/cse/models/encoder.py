"""The sentence encoder: a transformer, a pooling, and a head that only training uses."""

from __future__ import annotations

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
from .layout import write_modules
from .pooling import pool, pooled_layers
from .resolve import Source

__all__ = ["SentenceEncoder", "load_encoder", "save_encoder", "tokenize"]


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int) -> dict[str, Tensor]:
    """Token ids and attention masks ``(B, T)``, padded to the longest text of the batch.

    A fast tokenizer keeps the limit of its last call, so two threads must not share one.
    """
    return dict(tokenizer(list(texts), padding=True, truncation=True, max_length=max_length, return_tensors="pt"))


class SentenceEncoder(nn.Module):
    """A transformer with pooling; with ``pooler="cls"`` also an MLP (linear, tanh) that only training uses."""

    def __init__(
        self, backbone: Any, tokenizer: Any, source: Source, pooler: str, use_trained_pooler: bool = False
    ) -> None:
        super().__init__()
        self.use_trained_pooler = use_trained_pooler
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.source = source
        self.pooler = pooler
        size = backbone.config.hidden_size
        self.head: nn.Sequential | None = None
        if pooler == "cls" and not use_trained_pooler:
            dense = nn.Linear(size, size)
            nn.init.normal_(dense.weight, std=getattr(backbone.config, "initializer_range", 0.02))
            nn.init.zeros_(dense.bias)
            self.head = nn.Sequential(dense, nn.Tanh())

    @property
    def embedding_dim(self) -> int:
        """D, the length of an embedding."""
        return int(self.backbone.config.hidden_size)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Token ids to ``(B, D)``; the head is applied in training mode only."""
        outputs = self.backbone(**batch, output_hidden_states=self.pooler.startswith("avg_"))
        if self.use_trained_pooler:
            trained: Tensor = outputs.pooler_output
            return trained
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
        """Embeddings ``(n, D)`` float32 in evaluation mode: no dropout, no head, normalised if the model normalises.

        Texts are truncated at the model's own limit and sorted by length, which saves padding. ``progress`` is called
        with the number of texts encoded since its last call.
        """
        was_training = self.training
        self.eval()
        device = next(self.parameters()).device
        if len(texts) == 0:
            return np.empty((0, self.embedding_dim), dtype=np.float32)
        order = np.argsort([-len(text) for text in texts], kind="stable")
        out = np.empty((len(texts), self.embedding_dim), dtype=np.float32)
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


def load_encoder(source: Source, pooler: str, *, for_inference: bool = False) -> SentenceEncoder:
    """Loads an encoder in float32.

    Args:
        source: Where its files are.
        pooler: See ``cse.models.pooling.pool``.
        for_inference: With ``pooler="cls"``, use the pooler (linear, tanh) of the checkpoint if its files hold one, as
            for supervised SimCSE. Training always starts a new head.

    Raises:
        InputError: For files that cannot be read, missing weights other than those of an unused pooler, weights that
            are not finite, a tokenizer that does not fit, or a pooler that the model cannot have.
    """
    if source.causal and pooler in ("cls", "cls_before_pooler"):
        raise InputError(
            f"--pooler {pooler}: {source.name} is a decoder, whose first token sees no other token; use --pooler avg"
        )
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            backbone, report = AutoModel.from_pretrained(
                source.path,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported below
            )
            tokenizer = AutoTokenizer.from_pretrained(source.path, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        raise InputError(f"--model {source.name}: cannot be loaded ({str(error).splitlines()[0]})") from None
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise InputError(
            f"--model {source.name}: {len(missing)} weights are not in its files ({missing[0]}, ...); "
            "it is not a whole encoder"
        )
    if report.get("mismatched_keys"):
        raise InputError(
            f"--model {source.name}: {sorted(report['mismatched_keys'], key=str)[0]} has not the shape that its "
            "config.json says"
        )
    backbone = backbone.float()
    for name, weights in backbone.named_parameters():
        if not torch.isfinite(weights).all():
            raise InputError(f"--model {source.name}: the weights {name} hold NaN or infinity; take another checkpoint")
    _fit_tokenizer(tokenizer, backbone, source)
    trained = bool(for_inference and pooler == "cls" and getattr(backbone, "pooler", None) is not None)
    trained = trained and not any(key.startswith("pooler.") for key in report["missing_keys"])
    return SentenceEncoder(backbone, tokenizer, source, pooler, use_trained_pooler=trained)


def _fit_tokenizer(tokenizer: Any, backbone: Any, source: Source) -> None:
    """Checks the tokenizer against the model, and gives a decoder without a padding token its end token for that."""
    if tokenizer.pad_token is None:
        if not source.causal or tokenizer.eos_token is None:
            raise InputError(
                f"--model {source.name}: its tokenizer has no padding token; set tokenizer.pad_token and save it again"
            )
        tokenizer.pad_token = tokenizer.eos_token
    rows = backbone.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise InputError(
            f"--model {source.name}: its tokenizer has {len(tokenizer):,} tokens and its embeddings only {rows:,}; the "
            "tokenizer belongs to another model"
        )


def save_encoder(model: SentenceEncoder, folder: Path, card: str) -> None:
    """Writes a directory that AutoModel, AutoTokenizer and SentenceTransformer load, atomically.

    The training head is not saved. ``card`` becomes ``README.md``; see ``cse.models.layout`` for the other files.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".cse-", dir=folder.parent))
    try:
        with naming(folder):
            _write(model, fresh, card)
        fresh.chmod(file_mode() | (file_mode() & 0o444) >> 2)  # readable implies searchable, for a folder
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
    backbone, source = model.backbone, model.source
    layers = int(backbone.config.num_hidden_layers)
    # SentenceTransformer passes on the hidden states only if the configuration asks for them.
    asked = backbone.config.output_hidden_states
    backbone.config.output_hidden_states = pooled_layers(model.pooler, layers) is not None
    backbone.save_pretrained(folder)
    backbone.config.output_hidden_states = asked
    # A fast tokenizer keeps the truncation and padding of its last batch; the saved one should have none.
    model.tokenizer.backend_tokenizer.no_truncation()
    model.tokenizer.backend_tokenizer.no_padding()
    limit, model.tokenizer.model_max_length = model.tokenizer.model_max_length, source.max_length
    model.tokenizer.save_pretrained(folder)
    model.tokenizer.model_max_length = limit
    write_modules(
        folder,
        pooler=model.pooler,
        normalize=source.normalize,
        max_length=source.max_length,
        embedding_dim=model.embedding_dim,
        layers=layers,
    )
    (folder / "README.md").write_text(card, encoding="utf8")
