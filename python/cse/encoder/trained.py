"""The encoder that is trained: an ``Encoder`` with modules that are applied in training only, such as SimCSE's head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers.sentence_transformer import modules as library
from torch import Tensor, nn

from ..errors import InputError
from . import masked
from .device import pick_precision
from .encoder import Encoder
from .fast.packing import encode_packed, is_hooked, is_packable
from .modules import (
    Head,
    OnlyIn,
    Transformer,
    applied,
    check_width,
    in_evaluation,
    is_causal,
    normalizes,
    split,
)
from .pooling_modules import pooler_of, pooling_modules
from .resolve import Source, naming_model, quiet
from .tokens import POOLED

# Modules after the pooling with which an encoder can be trained.
TRAINABLE = (library.Dense, library.LayerNorm, library.Dropout, library.Normalize)


class SentenceEncoder(Encoder):
    """An ``Encoder`` that is trained; ``load_encoder`` makes it.

    What exists in training only, such as SimCSE's head or another pooling, is in modules that say so (``OnlyIn``) and
    that are not saved. A final Normalize is applied in evaluation only: losses use cosines.
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source.name, device="cpu")
        self.source, self.family = source, source.family
        self.training_pooler = ""
        """The name of the pooling in training; ``pooler`` is that in evaluation."""
        self.keep_head = False
        """Whether an MLP head is also applied in evaluation, and saved."""
        self.packed = False
        """Whether the transformer can encode rows without padding; see ``cse.encoder.fast.packing``."""
        self.adapters: str | None = None
        """Name of the LoRA adapters that are trained instead of the weights."""

    @property
    def backbone(self) -> Any:
        """The transformer, a model of the library transformers."""
        return self[0].model

    @property
    def head(self) -> Head | None:
        """The MLP head; None if there is none."""
        parts = (part for module in list(self)[1:] for part in module.modules())
        return next((part for part in parts if isinstance(part, Head)), None)

    def add_head(self, *before: nn.Module) -> Head:
        """Adds a new MLP head after the pooling and returns it; the modules ``before`` it are applied in training only.

        The head itself is applied in training only, unless ``keep_head`` is set.
        """
        pooling, after = split(self)
        head = Head(self.backbone.config)
        in_training = [OnlyIn("training", module) for module in before]
        kept = head if self.keep_head else OnlyIn("training", head)
        self.replace_modules([self[0], *pooling, *in_training, kept, *after])
        return head

    @property
    def packs(self) -> bool:
        """Whether the transformer encodes rows without padding: it can, and no hook expects hidden states by row."""
        return self.packed and not is_hooked(self.backbone)

    @property
    def pools_prompt(self) -> bool:
        """Whether the tokens of a prompt are pooled."""
        return all(getattr(module, "include_prompt", True) for module in split(in_evaluation(self))[0])

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding in training, where it is not truncated."""
        return self.width

    def embed(self, tokens: Mapping[str, Tensor], around: AbstractContextManager[Any] | None = None) -> Tensor:
        """Returns embeddings ``(B, D)`` of tokens ``(B, T)``; ``around`` is a context only for the transformer."""
        inputs = {key: value for key, value in tokens.items() if key != POOLED}
        if not self[0].takes_token_types:
            inputs.pop("token_type_ids", None)
        layers = any(isinstance(module, library.WeightedLayerPooling) for module in applied(self))
        features: dict[str, Any]
        if self.packs and around is None and not self[0].pools and is_packable(inputs):
            last, states = encode_packed(self.backbone, inputs, layers=layers)
            features = {**inputs, "token_embeddings": last, "all_layer_embeddings": states}
        else:
            with around or nullcontext():
                # Called itself: sentence-transformers calls ``forward``, without hooks and without compilation.
                output = self.backbone(**inputs, output_hidden_states=layers)
            if self[0].pools:
                features = {**inputs, "sentence_embedding": output.pooler_output}
            else:
                features = {**inputs, "token_embeddings": output.last_hidden_state}
                features |= {"all_layer_embeddings": output.hidden_states} if layers else {}
        if (pooled := tokens.get(POOLED)) is not None:
            features["prompt_length"] = (tokens["attention_mask"] - pooled).sum(1).amax(0, keepdim=True)
        return self.embedded(features)

    def embedded(self, features: dict[str, Any]) -> Tensor:
        """Returns embeddings ``(B, D)`` of the features that the transformer returns, by the modules after it."""
        for module in list(self)[1:]:
            features = module(features)
        z: Tensor = features["sentence_embedding"]
        return z

    def encode(  # type: ignore[override]
        self, texts: Sequence[str], *, precision: str = "fp32", **settings: Any
    ) -> npt.NDArray[np.float32]:
        """Encodes texts in evaluation mode, in the precision ``fp32`` or ``bf16``."""
        was_training, before = self.training, self.precision
        if self.device.type != "cpu":  # small batches would leave a GPU idle
            settings.setdefault("batch_size", 512)
        self.precision, _ = pick_precision(str(self.device), precision)
        self.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # texts have many lengths
                return super().encode(texts, **settings)  # type: ignore[no-any-return]
        finally:
            self.train(was_training)
            self.precision = before

    def masked_language_model(self) -> tuple[nn.Module, bool]:
        """Returns a masked language model with this encoder's transformer, and whether its head is new."""
        return masked.masked_language_model(self)

    save_masked_language_model = staticmethod(masked.save_head)


def load_encoder(
    source: Source, pooler: str, *, for_inference: bool = False, keep_head: bool = False, eval_pooler: str | None = None
) -> SentenceEncoder:
    """Loads an encoder in float32, in evaluation mode.

    With ``for_inference`` and the pooler ``cls``, its head is the Dense module of the folder, else the trained pooler
    of the checkpoint, if there is one. In training, it is the Dense module of the folder, or a new one.
    """
    # A stored head draws no random numbers when it is loaded, since it may be dropped below.
    with torch.random.fork_rng(devices=[], enabled=source.has_head):
        encoder = SentenceEncoder(source)
    check_trainable(encoder, pooler, eval_pooler)
    transformer, (declared, after) = encoder[0], split(encoder)
    stored = next((module for module in after if isinstance(module, library.Dense)), None) if source.has_head else None
    after = [module for module in after if module is not stored]
    stored = stored if pooler == "cls" else None
    encoder.training_pooler, encoder.keep_head = pooler, keep_head or (for_inference and stored is not None)
    check_poolers(pooler, eval_pooler, encoder.keep_head)
    if not for_inference:  # a new run takes the dimensions from its Matryoshka loss term
        encoder.trained_dims = ()
    if normalizes(after):
        after[-1] = OnlyIn("evaluation", after[-1])
    with naming_model(source.name, Path(source.folder)):
        if for_inference and pooler == "cls" and transformer.has_pooler and stored is None:
            encoder.replace_modules([transformer, *declared, *after])
            encoder.pool_by_checkpoint()
            return encoder
        if getattr(encoder.backbone, "pooler", None) is not None:
            # In compiled models, unused weights have gradients of 0 (not None), so the optimizer would decay them.
            encoder.backbone.pooler.requires_grad_(False)
        poolings = [
            declared if name == pooler_of(declared) else pooling_modules(name, transformer, encoder.pools_prompt)
            for name in dict.fromkeys((pooler, eval_pooler or pooler))
        ]
        for pooling in poolings:
            check_width(pooling, after, source.pooler)
        pooled: list[nn.Module] = poolings[0]
        if len(poolings) > 1:
            pooled = [OnlyIn("training", *poolings[0]), OnlyIn("evaluation", *poolings[1])]
        for module in pooled:
            module.requires_grad_(False)
        encoder.replace_modules([transformer, *pooled, *after])
        if pooler == "cls":
            head = encoder.add_head()
            if stored is not None:
                head.load_state_dict(stored.state_dict())
    return encoder


def check_trainable(encoder: Encoder, pooler: str, eval_pooler: str | None) -> None:
    """Raises ``InputError`` for a model that cannot be trained, or not with these poolers."""
    transformer, name = encoder[0], encoder.given[0]
    pooling, after = split(encoder)
    if (
        not isinstance(transformer, Transformer)
        or transformer.tokenizer is None
        or transformer.pools
        or not pooling
        or not all(isinstance(module, TRAINABLE) for module in after)
    ):
        names = ", ".join(type(module).__name__ for module in encoder)
        raise InputError(
            f"--model {name}: the model consists of {names}; training needs a Transformer, a Pooling, and "
            "after it only Dense, LayerNorm, Dropout or Normalize"
        )
    first = next((each for each in (pooler, eval_pooler) if each in ("cls", "cls_before_pooler")), None)
    if first and is_causal(transformer.config):
        raise InputError(
            f"--pooler {first}: {name} is a decoder, whose first token attends only to itself; use --pooler avg"
        )
    if pooler == "mask" and transformer.tokenizer.mask_token_id is None:
        raise InputError("--encoder-method prompt: needs a mask, a CLS and a SEP token; use a model like BERT")


def check_poolers(pooler: str, eval_pooler: str | None, keep_head: bool) -> None:
    """Raises ``InputError`` if a model that is trained with one pooling cannot be evaluated with the other."""
    if eval_pooler not in (None, pooler) and (
        (keep_head and pooler == "cls")
        or "mask" in (pooler, eval_pooler)
        or eval_pooler == "cls"
        or str(eval_pooler).count("+") != pooler.count("+")
    ):
        raise InputError(
            f"--eval-pooler {eval_pooler} cannot be combined with --pooler {pooler}{' --keep-head' * keep_head}: "
            "it must be a pooler without a head (such as cls_before_pooler) that gives as many dimensions"
        )


def load_tokenizer(source: Source) -> Any:
    """Loads the tokenizer of a model; raises ``InputError`` if its files cannot be read."""
    from transformers import AutoTokenizer

    with naming_model(source.name, Path(source.folder)), quiet():
        return AutoTokenizer.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)


def check_mask(encoder: SentenceEncoder) -> None:
    """Raises ``InputError`` if texts are pooled at a mask token that the tokenizer does not add to them."""
    if encoder.training_pooler == "mask" and encoder.tokenizer.mask_token_id not in encoder.tokenizer("a")["input_ids"]:
        raise InputError(
            f"--pooler mask: the tokenizer of {encoder.source.name} adds no mask token; use --encoder-method prompt"
        )
