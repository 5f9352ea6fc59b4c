"""The sentence encoder: a transformer, pooling, an MLP head (used only in training, or kept), and further stages."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ...errors import InputError, first_line
from ..device import autocast, copied_to, pick_precision, uncompiled
from ..pooling import pool
from ..reading.adapters import Adapters, load_mlm_head, mlm_head, save_mlm_head, with_adapter
from ..reading.resolve import LOAD_ERRORS, Source, cannot_load
from ..reading.stages import build_stage
from ..tokens import POOLED, prompt_length, with_pooled
from ..tokens import pad as pad
from ..tokens import token_lists as token_lists
from ..tokens import tokenize as tokenize
from .acceleration import batches_by_length

# Number of texts that are tokenized and sorted by length at a time.
BLOCK = 16384


class SentenceEncoder(nn.Module):
    """A transformer with pooling, an MLP head (only with ``pooler="cls"`` or PromptBERT), and further stages.

    The head is a linear layer and a tanh.

    The stages are the modules of a sentence-transformers directory that follow the pooling, in the same order. A final
    Normalize is not among them: it is stored as ``source.normalize`` and applied only by ``encode``, since the losses
    use cosine similarity.

    Args:
        backbone: A transformers model.
        tokenizer: Its tokenizer.
        source: The files from which the model was loaded.
        pooler: See ``cse.models.pooling.pool``.
        use_trained_pooler: Use the ``pooler_output`` of the backbone instead of a new head.
        keep_head: Use the head in evaluation as well (supervised SimCSE), not only in training.
        stages: Modules of ``cse.models.reading.stages``.
        eval_pooler: Pooling in evaluation and in the saved model, if it differs from ``pooler``, the one in training.

    Raises:
        InputError: If the input width of a stage differs from the output width of the pooling or stage before it, or if
            the two poolings cannot be used together.
    """

    def __init__(
        self,
        backbone: Any,
        tokenizer: Any,
        source: Source,
        pooler: str,
        use_trained_pooler: bool = False,
        keep_head: bool = False,
        stages: Sequence[nn.Module] = (),
        eval_pooler: str | None = None,
    ) -> None:
        super().__init__()
        _check_poolers(pooler, eval_pooler, keep_head)
        self.keep_head = keep_head
        self.use_trained_pooler = use_trained_pooler
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.source = source
        self.pooler = pooler
        self.saved_pooler = eval_pooler or pooler
        """Pooling in evaluation mode, which the saved model declares."""
        if not use_trained_pooler and getattr(backbone, "pooler", None) is not None:
            # In compiled models, unused weights have gradients of 0 (not None), so the optimizer would decay them.
            backbone.pooler.requires_grad_(False)
        size = backbone.config.hidden_size
        self.denoise: Callable[[Any, dict[str, Tensor]], Tensor] | None = None
        """Computes vectors ``(B, D)`` that training subtracts from the pooled output; see ``cse.features``."""
        self.template: Any = None
        self.adapters: Adapters | None = None
        """The adapters that are trained instead of the weights; see ``cse.features.encoder_methods``."""
        self.head: nn.Sequential | None = None
        if pooler == "cls" and not use_trained_pooler:
            dense = nn.Linear(size, size)
            nn.init.normal_(dense.weight, std=getattr(backbone.config, "initializer_range", 0.02))
            nn.init.zeros_(dense.bias)
            self.head = nn.Sequential(dense, nn.Tanh())
        self.stages = nn.ModuleList(stages)
        self.prompt = source.modules.prompts.get(source.modules.default_prompt or "", "")
        """Text that ``encode`` puts before each sentence, unless the call specifies another prompt."""
        # A tokenizer that was not made for the model may return token types, which the model may not accept.
        self._dropped = {"token_type_ids"} - set(inspect.signature(backbone.forward).parameters)
        self._width: int = size * len(pooler.split("+"))
        for stage in self.stages:
            wanted = getattr(getattr(stage, "linear", None), "in_features", self._width)
            if wanted != self._width:
                raise InputError(
                    f"--pooler {pooler}: gives {self._width} dimensions, but the module {type(stage).__name__} of "
                    f"{source.name} takes {wanted}; use the pooler of the model, {source.pooler}"
                )
            self._width = getattr(stage, "out_features", self._width)

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""
        return self._width

    def forward(self, batch: dict[str, Tensor], around: AbstractContextManager[Any] | None = None) -> Tensor:
        """Returns embeddings ``(B, D)`` of tokens ``(B, T)``; a head that is not kept is applied in training only.

        ``around`` is a context manager in which the transformer encodes the batch, such as the one of a hook; a further
        pass for ``denoise`` runs outside it.
        """
        batch = {key: value for key, value in batch.items() if key not in self._dropped}
        chosen = batch.pop(POOLED, None)
        pooler = self.pooler if self.training else self.saved_pooler
        with around or nullcontext():
            outputs = self.backbone(**batch, output_hidden_states=pooler.startswith("avg_"))
        if self.use_trained_pooler:
            pooled: Tensor = outputs.pooler_output
        else:
            states = outputs.hidden_states or (outputs.last_hidden_state,)
            mask, ids, left = batch["attention_mask"], batch["input_ids"], self.tokenizer.padding_side == "left"
            pooled = pool(pooler, states, mask, ids, self.tokenizer.mask_token_id, pooled=chosen, left=left)
            if self.training and self.denoise is not None:
                pooled = pooled - self.denoise(self.backbone, batch)
            if self.head is not None and (self.training or self.keep_head):
                pooled = self.head(pooled)
        for stage in self.stages:
            pooled = stage(pooled)
        return pooled

    def states(self, batch: dict[str, Tensor]) -> Tensor:
        """Returns the last hidden states ``(B, T, H)`` of tokens ``(B, T)``."""
        known = {key: value for key, value in batch.items() if key not in self._dropped}
        found: Tensor = self.backbone(**known).last_hidden_state
        return found

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        *,
        batch_size: int = 64,
        progress: Callable[[int], None] | None = None,
        precision: str = "fp32",
        prompt: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """Encodes texts in evaluation mode: without dropout, and with the head only if it is kept.

        Texts are truncated to ``source.max_length`` tokens and batched by length, so that almost no padding is
        processed (benches/encode.py counts the padding). To limit memory use, ``BLOCK`` texts are tokenized at a time.

        Args:
            texts: n texts.
            batch_size: Texts per forward pass.
            progress: Called with the number of texts encoded since its last call.
            precision: Precision of the transformer, ``fp32``, ``bf16`` or ``auto``; see ``pick_precision``.
            prompt: Text that is put before each of the texts; default: ``self.prompt``.

        Returns:
            ``(n, D)`` float32, normalised to unit length if ``source.normalize`` is True.
        """
        device = str(next(self.parameters()).device)
        precision, _ = pick_precision(device, precision)
        was_training = self.training
        self.eval()
        prompt = self.prompt if prompt is None else prompt
        left_out = 0 if self.source.modules.include_prompt else prompt_length(self.tokenizer, prompt)
        out = np.empty((len(texts), self.embedding_dim), dtype=np.float32)
        # One context for all batches: autocast keeps the converted weights until its context ends.
        with autocast(device, precision):
            for start in range(0, len(texts), BLOCK):
                block = (
                    [prompt + text for text in texts[start : start + BLOCK]] if prompt else texts[start : start + BLOCK]
                )
                tokens = token_lists(self.tokenizer, block, self.source.max_length)
                for rows in batches_by_length(tokens["input_ids"], batch_size):
                    batch = with_pooled(pad(self.tokenizer, tokens, rows.tolist()), left_out)
                    out[start + rows] = self._encode_batch(batch)
                    if progress:
                        progress(len(rows))
        self.train(was_training)
        return out

    def masked_language_model(self) -> tuple[nn.Module, bool]:
        """Returns a masked language model with this encoder's transformer, and whether its head is newly initialised.

        The head is loaded from the checkpoint, else from the folder ``mlm_head`` next to its weights. If neither holds
        all weights of the head, the missing ones are newly initialised. The output layer shares its weights with the
        token embeddings if the configuration ties them. Raises ``InputError`` if the tokenizer has no mask token, or if
        transformers has no masked language model for this type of model.
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
            raise InputError(f"--mlm-weight: {name} cannot be loaded as a masked language model ({error})") from None
        model = model.float()
        setattr(model, model.base_model_prefix, self.backbone)
        output = model.get_output_embeddings()
        if output is not None and getattr(model.config, "tie_word_embeddings", True):
            output.weight = self.backbone.get_input_embeddings().weight
        missing = mlm_head(model).keys() & set(report["missing_keys"])
        return model, bool(missing) and not load_mlm_head(model, Path(self.source.path))

    @staticmethod
    def save_masked_language_model(model: nn.Module, folder: Path) -> None:
        """Saves the head of a masked language model in ``folder``, from which ``masked_language_model`` loads it."""
        save_mlm_head(model, folder)

    def _encode_batch(self, batch: dict[str, Tensor]) -> npt.NDArray[np.float32]:
        device = next(self.parameters()).device
        with uncompiled():
            vectors = self({key: copied_to(value, device) for key, value in batch.items()})
        vectors = vectors.float()
        if self.source.normalize:
            vectors = nn.functional.normalize(vectors, dim=-1)
        found: npt.NDArray[np.float32] = vectors.cpu().numpy()
        return found


def _check_poolers(pooler: str, eval_pooler: str | None, keep_head: bool) -> None:
    if eval_pooler is None or eval_pooler == pooler:
        return
    if keep_head and pooler == "cls":
        raise InputError(f"--eval-pooler {eval_pooler} cannot be combined with --keep-head, the head of --pooler cls")
    if "mask" in (pooler, eval_pooler) or eval_pooler == "cls":
        raise InputError(
            f"--eval-pooler {eval_pooler} cannot be combined with --pooler {pooler}; leave it out, or use "
            "cls_before_pooler"
        )
    if eval_pooler.count("+") != pooler.count("+"):
        raise InputError(
            f"--eval-pooler {eval_pooler}: its embeddings do not have the dimensions of --pooler {pooler}; join "
            "equally many poolers in both"
        )


def load_encoder(
    source: Source,
    pooler: str,
    *,
    for_inference: bool = False,
    keep_head: bool = False,
    eval_pooler: str | None = None,
) -> SentenceEncoder:
    """Loads an encoder in float32.

    Args:
        source: Location and properties of the model, from ``find_model``.
        pooler: See ``cse.models.pooling.pool``.
        for_inference: With ``pooler="cls"``, use the head stored as a Dense module of the directory, else the trained
            pooler (linear, tanh) of the checkpoint, if there is one. If False (training), the head is loaded from the
            Dense module of the directory, or newly initialised if there is none.
        keep_head: Use the head in evaluation as well. For inference, a head loaded from a Dense module is always used.
        eval_pooler: See ``SentenceEncoder``.

    Raises:
        InputError: If files cannot be read; if weights are missing (other than those of a pooler), not finite or of the
            wrong shape; or if the tokenizer or the pooler does not suit the model.
    """
    first = next((each for each in (pooler, eval_pooler) if each in ("cls", "cls_before_pooler")), None)
    if source.causal and first:
        raise InputError(
            f"--pooler {first}: {source.name} is a decoder, whose first token attends only to itself; use --pooler avg"
        )
    backbone, tokenizer, has_pooler = _load_backbone(source)
    trained = for_inference and pooler == "cls" and has_pooler
    stored = source.dense if pooler == "cls" else None
    kept = keep_head or (for_inference and stored is not None)
    stages = [build_stage(stage) for stage in source.modules.stages]
    if not for_inference:  # a new run takes the dimensions from its Matryoshka loss term
        source = replace(source, modules=replace(source.modules, dims=()))
    encoder = SentenceEncoder(
        backbone, tokenizer, source, pooler, trained and stored is None, kept, stages, eval_pooler
    )
    if stored is not None and encoder.head is not None:
        _load_head(encoder.head, stored)
    if for_inference:
        check_mask(encoder)
    return encoder


def _load_backbone(source: Source) -> tuple[Any, Any, bool]:
    """Returns the transformer in float32, its tokenizer, and whether the checkpoint has a trained pooler.

    Raises ``InputError`` as ``load_encoder`` does.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    backbone, report = _pretrained(source)
    tokenizer = load_tokenizer(source)
    missing = [key for key in report["missing_keys"] if not key.startswith("pooler.")]
    if missing:
        raise InputError(
            f"--model {source.name}: its files lack {len(missing)} of the model's weights ({missing[0]}, ...); "
            "the checkpoint is incomplete"
        )
    if report.get("mismatched_keys"):
        raise InputError(
            f"--model {source.name}: the shape of {sorted(report['mismatched_keys'], key=str)[0]} does not match its "
            "config.json"
        )
    backbone = backbone.float()
    if source.base is not None:
        backbone = with_adapter(backbone, Path(source.path), source.name)
    for name, weights in backbone.named_parameters():
        if not torch.isfinite(weights).all():
            raise InputError(f"--model {source.name}: the weight {name} holds NaN or infinity; use another checkpoint")
    _fit_tokenizer(tokenizer, backbone, source)
    has_pooler = getattr(backbone, "pooler", None) is not None and len(missing) == len(report["missing_keys"])
    return backbone, tokenizer, has_pooler


def _pretrained(source: Source) -> tuple[Any, dict[str, Any]]:
    """Returns the transformer and a report of the weights that are missing or do not fit."""
    from transformers import AutoModel

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: tuple[Any, dict[str, Any]] = AutoModel.from_pretrained(
                source.base or source.path,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # reported by the caller
                trust_remote_code=False,
            )
    except LOAD_ERRORS as error:
        raise cannot_load(source, error) from None
    return found


def load_tokenizer(source: Source) -> Any:
    """Loads the tokenizer of a model; raises ``InputError`` if its files cannot be read."""
    from transformers import AutoTokenizer

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tokenizer = AutoTokenizer.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)
    except LOAD_ERRORS as error:
        raise cannot_load(source, error) from None
    if source.modules.lower_case:
        _lower_case(tokenizer)
    return tokenizer


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
        raise InputError(f"{folder}: the head cannot be loaded ({first_line(error)})") from None


def _lower_case(tokenizer: Any) -> None:
    """Makes a fast tokenizer convert texts to lower case before it normalises them, as sentence-transformers does."""
    from tokenizers.normalizers import Lowercase, Sequence

    own = tokenizer.backend_tokenizer.normalizer
    first: list[Any] = [Lowercase()]
    tokenizer.backend_tokenizer.normalizer = Sequence([*first, *([] if own is None else [own])])


def _fit_tokenizer(tokenizer: Any, backbone: Any, source: Source) -> None:
    """Checks that the tokenizer matches the model; pads with the EOS token if a decoder has no padding token."""
    if tokenizer.pad_token is None:
        if not source.causal or tokenizer.eos_token is None:
            raise InputError(
                f"--model {source.name}: its tokenizer has no padding token; set tokenizer.pad_token and save the "
                "tokenizer again"
            )
        tokenizer.pad_token = tokenizer.eos_token
    rows = backbone.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise InputError(
            f"--model {source.name}: its tokenizer has {len(tokenizer):,} tokens, but the model has embeddings "
            f"for only {rows:,}; the tokenizer belongs to another model"
        )
