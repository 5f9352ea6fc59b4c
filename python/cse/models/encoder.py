"""The sentence encoder: a transformer, pooling, and an MLP head that is used in training only, or kept."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import InputError
from ..io import file_mode, fresh_folder
from .device import autocast, pick_precision, uncompiled
from .layout import write_modules
from .mlm_head import load_mlm_head, mlm_head, save_mlm_head
from .pooling import pool, pooled_layers
from .resolve import LOAD_ERRORS, Source, cannot_load

__all__ = ["SentenceEncoder", "check_mask", "load_encoder", "pad", "save_encoder", "token_lists", "tokenize"]

# Texts that are tokenized, and sorted by length, at a time.
BLOCK = 16384


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int, fixed: bool = False) -> dict[str, Tensor]:
    """Tokenizes a batch to ids and attention masks ``(B, T)``.

    T is ``max_length`` if ``fixed``, else the length of the longest text. Not thread-safe: a fast tokenizer stores the
    truncation and padding of its last call, so each thread needs its own.
    """
    padding = "max_length" if fixed else True
    return dict(tokenizer(list(texts), padding=padding, truncation=True, max_length=max_length, return_tensors="pt"))


def token_lists(tokenizer: Any, texts: Sequence[str], max_length: int) -> dict[str, list[list[int]]]:
    """Tokenizes texts without padding: ``input_ids`` and, if the model has them, ``token_type_ids``, one list a text.

    Not thread-safe, as ``tokenize``.
    """
    found = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)
    return {key: found[key] for key in tokenizer.model_input_names if key in found}


def pad(
    tokenizer: Any, tokens: Mapping[str, Sequence[Any]], rows: Sequence[int], length: int | None = None
) -> dict[str, Tensor]:
    """Pads some of the lists of ``token_lists`` to ids and attention masks ``(B, T)``, on the tokenizer's side.

    T is ``length``, else that of the longest list.
    """
    lengths = [len(tokens["input_ids"][row]) for row in rows]
    longest = max(lengths) if length is None else length
    left = tokenizer.padding_side == "left"
    fill = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
    batch = {key: np.full((len(rows), longest), fill.get(key, 0), dtype=np.int64) for key in tokens}
    batch["attention_mask"] = np.zeros((len(rows), longest), dtype=np.int64)
    for number, (row, size) in enumerate(zip(rows, lengths, strict=True)):
        place = slice(longest - size, longest) if left else slice(0, size)
        for key, lists in tokens.items():
            batch[key][number, place] = lists[row]
        batch["attention_mask"][number, place] = 1
    return {key: torch.from_numpy(values) for key, values in batch.items()}


class SentenceEncoder(nn.Module):
    """A transformer with pooling, and for ``pooler="cls"`` an MLP head (linear, tanh).

    Args:
        backbone: A transformers model.
        tokenizer: Its tokenizer.
        source: The files it was loaded from.
        pooler: See ``cse.models.pooling.pool``.
        use_trained_pooler: Use the ``pooler_output`` of the backbone instead of a new head.
        keep_head: Use the head in evaluation as well (supervised SimCSE), not only in training.
    """

    def __init__(
        self,
        backbone: Any,
        tokenizer: Any,
        source: Source,
        pooler: str,
        use_trained_pooler: bool = False,
        keep_head: bool = False,
    ) -> None:
        super().__init__()
        self.keep_head = keep_head
        self.use_trained_pooler = use_trained_pooler
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.source = source
        self.pooler = pooler
        if not use_trained_pooler and getattr(backbone, "pooler", None) is not None:
            # Compiled models give unused weights gradients of 0, and the optimizer would decay them.
            backbone.pooler.requires_grad_(False)
        size = backbone.config.hidden_size
        self.denoise: Callable[[Any, dict[str, Tensor]], Tensor] | None = None
        """Vectors ``(B, D)`` that are subtracted in training; see ``cse.features.prompt``."""
        self.template: Any = None
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
        """Returns embeddings ``(B, D)`` of tokens ``(B, T)``; a head that is not kept is applied in training only."""
        outputs = self.backbone(**batch, output_hidden_states=self.pooler.startswith("avg_"))
        if self.use_trained_pooler:
            trained: Tensor = outputs.pooler_output
            return trained
        states = outputs.hidden_states or (outputs.last_hidden_state,)
        pooled = pool(self.pooler, states, batch["attention_mask"], batch["input_ids"], self.tokenizer.mask_token_id)
        if self.training and self.denoise is not None:
            pooled = pooled - self.denoise(self.backbone, batch)
        return self.head(pooled) if self.head is not None and (self.training or self.keep_head) else pooled

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        precision: str = "fp32",
    ) -> npt.NDArray[np.float32]:
        """Encodes texts in evaluation mode, without dropout, and with the head only if it is kept.

        Texts are truncated at ``source.max_length`` tokens and batched by their numbers of tokens, so that nearly no
        padding is processed; benches/encode.py counts it. Texts are tokenized ``BLOCK`` at a time, which bounds memory.

        Args:
            texts: n texts.
            batch_size: Texts per forward pass.
            progress: Called with the number of texts encoded since its last call.
            precision: Precision of the transformer, ``fp32``, ``bf16`` or ``auto``; see ``pick_precision``.

        Returns:
            ``(n, D)`` float32, normalised to unit length if ``source.normalize`` is True.
        """
        device = str(next(self.parameters()).device)
        precision, _ = pick_precision(device, precision)
        was_training = self.training
        self.eval()
        out = np.empty((len(texts), self.embedding_dim), dtype=np.float32)
        # One context for all batches, so that the weights are converted once.
        with autocast(device, precision):
            for start in range(0, len(texts), BLOCK):
                tokens = token_lists(self.tokenizer, texts[start : start + BLOCK], self.source.max_length)
                order = np.argsort([-len(ids) for ids in tokens["input_ids"]], kind="stable")
                for first in range(0, len(order), batch_size):
                    rows = order[first : first + batch_size]
                    out[start + rows] = self._encode_batch(pad(self.tokenizer, tokens, rows.tolist()))
                    if progress:
                        progress(len(rows))
        self.train(was_training)
        return out

    def masked_language_model(self) -> tuple[nn.Module, bool]:
        """Returns a masked language model around the transformer of this encoder, whose weights it shares.

        Its head is that of the checkpoint, or that saved beside it, else newly initialised. The second value is whether
        weights of the head are newly initialised. The output weights are the token
        embeddings if the configuration ties them. Raises ``InputError`` without a mask token or such a model type.
        """
        from transformers import AutoModelForMaskedLM

        name = self.source.name
        if self.tokenizer.mask_token_id is None:
            raise InputError(f"--mlm-weight: the tokenizer of {name} has no mask token; use a model like BERT")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model, report = AutoModelForMaskedLM.from_pretrained(
                    self.source.path, local_files_only=True, output_loading_info=True
                )
        except ValueError as error:
            raise InputError(f"--mlm-weight: {name} has no masked language model ({error})") from None
        model = model.float()
        setattr(model, model.base_model_prefix, self.backbone)
        output = model.get_output_embeddings()
        if output is not None and getattr(model.config, "tie_word_embeddings", True):
            output.weight = self.backbone.get_input_embeddings().weight
        missing = mlm_head(model).keys() & set(report["missing_keys"])
        return model, bool(missing) and not load_mlm_head(model, Path(self.source.path))

    @staticmethod
    def save_masked_language_model(model: nn.Module, folder: Path) -> None:
        """Saves the head of a ``masked_language_model`` beside the encoder in ``folder``, where it is found again."""
        save_mlm_head(model, folder)

    def _encode_batch(self, batch: dict[str, Tensor]) -> npt.NDArray[np.float32]:
        device = next(self.parameters()).device
        with uncompiled():
            vectors = self({key: value.to(device, non_blocking=True) for key, value in batch.items()})
        vectors = vectors.float()
        if self.source.normalize:
            vectors = nn.functional.normalize(vectors, dim=-1)
        found: npt.NDArray[np.float32] = vectors.cpu().numpy()
        return found


def load_encoder(
    source: Source, pooler: str, *, for_inference: bool = False, keep_head: bool = False
) -> SentenceEncoder:
    """Loads an encoder in float32.

    Args:
        source: Location and properties of the model, from ``find_model``.
        pooler: See ``cse.models.pooling.pool``.
        for_inference: With ``pooler="cls"``, use the pooler (linear, tanh) of the checkpoint if it has one, as for
            supervised SimCSE. For training (False), the head is that of a directory with a Dense module, else newly
            initialised.
        keep_head: Use the head in evaluation as well. Always true in inference if the directory has a Dense module.

    Raises:
        InputError: For files that cannot be read, missing weights other than those of an unused pooler, weights that
            are not finite, a tokenizer with more tokens than the model, or CLS pooling of a decoder.
    """
    if source.causal and pooler in ("cls", "cls_before_pooler"):
        raise InputError(
            f"--pooler {pooler}: {source.name} is a decoder, whose first token attends to no other; use --pooler avg"
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
    except LOAD_ERRORS as error:
        raise cannot_load(source, error) from None
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise InputError(
            f"--model {source.name}: {len(missing)} weights are not in its files ({missing[0]}, ...); "
            "the checkpoint is incomplete"
        )
    if report.get("mismatched_keys"):
        raise InputError(
            f"--model {source.name}: the shape of {sorted(report['mismatched_keys'], key=str)[0]} does not match its "
            "config.json"
        )
    backbone = backbone.float()
    for name, weights in backbone.named_parameters():
        if not torch.isfinite(weights).all():
            raise InputError(f"--model {source.name}: the weights {name} hold NaN or infinity; use another checkpoint")
    _fit_tokenizer(tokenizer, backbone, source)
    trained = bool(for_inference and pooler == "cls" and getattr(backbone, "pooler", None) is not None)
    trained = trained and not any(key.startswith("pooler.") for key in report["missing_keys"])
    stored = source.dense if pooler == "cls" else None
    kept = keep_head or (for_inference and stored is not None)
    encoder = SentenceEncoder(backbone, tokenizer, source, pooler, trained and stored is None, kept)
    if stored is not None and encoder.head is not None:
        _load_head(encoder.head, stored)
    if for_inference:
        check_mask(encoder)
    return encoder


def check_mask(encoder: SentenceEncoder) -> None:
    """Raises ``InputError`` if texts are pooled at a mask token that the tokenizer does not add to them."""
    if encoder.pooler == "mask" and encoder.tokenizer.mask_token_id not in encoder.tokenizer("a")["input_ids"]:
        raise InputError(
            f"--pooler mask: the tokenizer of {encoder.source.name} adds no mask token; use --encoder-method prompt"
        )


def _load_head(head: nn.Sequential, folder: Path) -> None:
    from safetensors.torch import load_file

    try:
        weights = load_file(folder / "model.safetensors")
        head[0].load_state_dict({name.removeprefix("linear."): values.float() for name, values in weights.items()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(f"{folder}: the head cannot be loaded ({str(error).splitlines()[0]})") from None


def _fit_tokenizer(tokenizer: Any, backbone: Any, source: Source) -> None:
    """Checks that the tokenizer matches the model; a decoder without a padding token is padded with its end token."""
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


def save_encoder(
    model: SentenceEncoder, folder: Path, card: str, also: Callable[[Path], object] = lambda folder: None
) -> None:
    """Saves an encoder atomically, as a directory that AutoModel, AutoTokenizer and SentenceTransformer can load.

    A head is saved if it is kept, as a Dense module, and in the pooler of the transformer if it has one, so that
    ``AutoModel`` returns the embedding as ``pooler_output``. An existing folder is replaced.

    Args:
        model: The encoder.
        folder: The directory; its parents are created.
        card: Contents of ``README.md``; see ``cse.models.layout`` for the other files.
        also: Writes further files to the folder that it is called with, before that replaces the one that exists.

    Raises:
        OSError: If a file cannot be written.
    """
    with fresh_folder(folder) as fresh:
        _write(model, fresh, card)
        also(fresh)
        (fresh / "model.safetensors").chmod(file_mode())


def _write(model: SentenceEncoder, folder: Path, card: str) -> None:
    backbone, source = model.backbone, model.source
    layers = int(backbone.config.num_hidden_layers)
    # SentenceTransformer returns all hidden states only if output_hidden_states is set in the configuration.
    head: dict[str, Tensor] | None = (
        dict(model.head[0].named_parameters()) if model.head is not None and model.keep_head else None
    )
    own = getattr(backbone, "pooler", None)
    if head is not None and own is not None and hasattr(own, "dense"):
        own.dense.load_state_dict(head)
    asked = backbone.config.output_hidden_states
    backbone.config.output_hidden_states = pooled_layers(model.pooler, layers) is not None
    backbone.save_pretrained(folder)
    backbone.config.output_hidden_states = asked
    # A fast tokenizer stores the truncation and padding of its last call; neither should be saved.
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
        family=source.family,
        head=head,
    )
    (folder / "README.md").write_text(card, encoding="utf8")
