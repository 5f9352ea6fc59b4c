"""The encoder that is trained: the modules of an ``Encoder``, an MLP head, and another pooling in training."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer import modules as library
from torch import Tensor, nn

from ..errors import InputError, first_line
from .acceleration import encode_packed, is_hooked, is_packable
from .device import pick_precision
from .encoder import Encoder, quiet
from .modules import Transformer, check_width, is_causal, normalizes, split
from .pooling_modules import pooler_of, pooling_modules
from .resolve import Source, naming_model
from .tokens import POOLED


class SentenceEncoder(nn.Module):
    """A transformer with pooling, an MLP head (only with ``pooler="cls"`` or PromptBERT), and further modules.

    The head is a linear layer and a tanh. A final Normalize is applied only by ``encode``: losses use cosines.
    """

    def __init__(
        self,
        encoder: Encoder,
        source: Source,
        pooler: str,
        use_trained_pooler: bool = False,
        keep_head: bool = False,
        head: library.Dense | None = None,
        eval_pooler: str | None = None,
    ) -> None:
        super().__init__()
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
        transformer = encoder[0]
        self._encoder = (encoder,)  # its modules are registered here, in the order of earlier versions
        self.keep_head = keep_head
        self.use_trained_pooler = use_trained_pooler
        self.backbone: Any = transformer.model
        self.tokenizer: Any = transformer.tokenizer
        self.source = source
        self.pooler = pooler
        self.saved_pooler = eval_pooler or pooler
        """Pooling in evaluation mode, which the saved model declares."""
        self.normalize = normalizes(list(encoder))
        if not use_trained_pooler and getattr(self.backbone, "pooler", None) is not None:
            # In compiled models, unused weights have gradients of 0 (not None), so the optimizer would decay them.
            self.backbone.pooler.requires_grad_(False)
        pooling, after = split(encoder)
        self.pools_prompt = all(getattr(module, "include_prompt", True) for module in pooling)
        self.denoise: Callable[[Any, dict[str, Tensor]], Tensor] | None = None
        """Computes vectors ``(B, D)`` that training subtracts from the pooled output."""
        self.packed = False
        """Whether the transformer can encode rows without padding; see ``cse.encoder.acceleration``."""
        self.template: Any = None
        self.adapters: str | None = None
        """Name of the LoRA adapters that are trained instead of the weights."""
        self.head: nn.Sequential | None = None
        if pooler == "cls" and not use_trained_pooler:
            size = self.backbone.config.hidden_size
            dense = nn.Linear(size, size)
            nn.init.normal_(dense.weight, std=getattr(self.backbone.config, "initializer_range", 0.02))
            nn.init.zeros_(dense.bias)
            if head is not None:
                dense.load_state_dict(head.linear.state_dict())
            self.head = nn.Sequential(dense, nn.Tanh())
        kept = after[:-1] if self.normalize else after
        self.stages = nn.ModuleList([module for module in kept if module is not head])
        self.pooling, self.eval_pooling = (
            nn.ModuleList([] if use_trained_pooler else self._pooling(name, pooling))
            for name in (pooler, self.saved_pooler)
        )
        self.pooling.requires_grad_(False)
        self.eval_pooling.requires_grad_(False)
        # A tokenizer that was not made for the model may return token types, which the model may not accept.
        self._dropped = {"token_type_ids"} - set(inspect.signature(self.backbone.forward).parameters)
        for pooled in filter(len, (self.pooling, self.eval_pooling)):
            check_width(pooled, self.stages, source.pooler)  # type: ignore[arg-type]

    def _pooling(self, pooler: str, declared: list[nn.Module]) -> list[nn.Module]:
        if pooler == pooler_of(declared):
            return declared
        return pooling_modules(pooler, self._encoder[0][0], self.pools_prompt)

    @property
    def packs(self) -> bool:
        """Whether the transformer encodes rows without padding: it can, and no hook expects hidden states by row."""
        return self.packed and not is_hooked(self.backbone)

    @property
    def embedding_dim(self) -> int:
        """D, the number of dimensions of an embedding."""
        modules = [self._encoder[0][0], *self.eval_pooling, *self.stages]
        sizes = [module.get_embedding_dimension() for module in modules if hasattr(module, "get_embedding_dimension")]
        return int(sizes[-1])

    @property
    def max_length(self) -> int:
        """The maximum number of tokens of a text."""
        return int(self._encoder[0].max_seq_length)

    @property
    def prompt(self) -> str:
        """The text that ``encode`` puts before each sentence."""
        return self._encoder[0].prompt

    def forward(self, batch: dict[str, Tensor], around: AbstractContextManager[Any] | None = None) -> Tensor:
        """Returns embeddings ``(B, D)`` of tokens ``(B, T)``; a head that is not kept is applied in training only.

        ``around`` is a context manager in which the transformer encodes the batch, except for ``denoise``.
        """
        batch = {key: value for key, value in batch.items() if key not in self._dropped}
        chosen = batch.pop(POOLED, None)
        pooling = self.pooling if self.training else self.eval_pooling
        layers = len(pooling) > 1
        states: tuple[Tensor, ...]
        if self.packs and around is None and not self.use_trained_pooler and is_packable(batch):
            last, states = encode_packed(self.backbone, batch, layers=layers)
        else:
            with around or nullcontext():
                outputs = self.backbone(**batch, output_hidden_states=layers)
            last, states = outputs.last_hidden_state, outputs.hidden_states
        if self.use_trained_pooler:
            pooled: Tensor = outputs.pooler_output
        else:
            features: dict[str, Any] = {**batch, "token_embeddings": last}
            if layers:
                features["all_layer_embeddings"] = states
            if chosen is not None:
                features["prompt_length"] = (batch["attention_mask"] - chosen).sum(1).amax(0, keepdim=True)
            for module in pooling:
                features = module(features)
            pooled = features["sentence_embedding"]
            if self.training and self.denoise is not None:
                pooled = pooled - self.denoise(self.backbone, batch)
            if self.head is not None and (self.training or self.keep_head):
                pooled = self.head(pooled)
        for stage in self.stages:
            pooled = stage({"sentence_embedding": pooled})["sentence_embedding"]
        return pooled

    @property
    def evaluated(self) -> Encoder:
        """The encoder in evaluation: with the head only if it is kept, and with a final Normalize if there was one."""
        encoder = self._encoder[0]
        kept = []
        if self.head is not None and self.keep_head:
            linear: Any = self.head[0]
            with torch.device("meta"):  # draws no random numbers
                kept = [library.Dense(linear.in_features, linear.out_features, activation_function=nn.Tanh())]
            kept[0].linear = linear
        last = [library.Normalize()] if self.normalize else []
        encoder.replace_modules([encoder[0], *self.eval_pooling, *kept, *self.stages, *last])
        encoder.keeps_tokenizer |= self.template is not None
        return encoder

    def encode(
        self, texts: Sequence[str], *, precision: str = "fp32", prompt: str | None = None, **settings: Any
    ) -> npt.NDArray[np.float32]:
        """Encodes texts in evaluation mode."""
        was_training = self.training
        encoder = self.evaluated
        if encoder.device.type != "cpu":  # small batches would leave a GPU idle
            settings.setdefault("batch_size", 512)
        before = encoder.precision
        encoder.precision, _ = pick_precision(str(encoder.device), precision)
        self.eval()
        try:
            with torch.compiler.set_stance("force_eager"):  # texts have many lengths
                prompt = self.prompt if prompt is None else prompt
                return encoder.encode(texts, prompt=prompt, **settings)  # type: ignore[no-any-return]
        finally:
            self.train(was_training)
            encoder.precision = before

    def masked_language_model(self) -> tuple[nn.Module, bool]:
        """Returns a masked language model with this encoder's transformer, and whether its head is new.

        The head is that of the checkpoint, else of the folder ``mlm_head`` next to its weights, else a new one.
        """
        from transformers import AutoModelForMaskedLM

        name, path = self.source.name, Path(self.source.path)
        if self.tokenizer.mask_token_id is None:
            raise InputError(f"--mlm-weight: the tokenizer of {name} has no mask token; use a model like BERT")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model, report = AutoModelForMaskedLM.from_pretrained(
                    path, local_files_only=True, output_loading_info=True
                )
            model = model.float()
            setattr(model, model.base_model_prefix, self.backbone)
            output = model.get_output_embeddings()
            if output is not None and getattr(model.config, "tie_word_embeddings", True):
                output.weight = self.backbone.get_input_embeddings().weight
            head = mlm_head(model)
            new, stored = bool(head.keys() & set(report["missing_keys"])), path / MLM_HEAD
            if new and stored.is_file():
                new, weights = False, load_file(stored)
                with torch.no_grad():
                    for key, values in head.items():
                        values.copy_(weights[key])
        except (ValueError, OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise InputError(
                f"--mlm-weight: {name} cannot be loaded as a masked language model ({first_line(error)})"
            ) from None
        return model, new

    @staticmethod
    def save_masked_language_model(model: nn.Module, folder: Path) -> None:
        """Saves the head of a masked language model in ``folder``, from which ``masked_language_model`` loads it."""
        (folder / MLM_HEAD).parent.mkdir()
        head = {name: values.detach().cpu().contiguous() for name, values in mlm_head(model).items()}
        save_file(head, folder / MLM_HEAD)


def load_encoder(
    source: Source, pooler: str, *, for_inference: bool = False, keep_head: bool = False, eval_pooler: str | None = None
) -> SentenceEncoder:
    """Loads an encoder in float32.

    With ``for_inference`` and the pooler ``cls``, its head is the Dense module of the folder, else the trained pooler
    of the checkpoint, if there is one. In training, it is the Dense module of the folder, or a new one.
    """
    # A stored head draws no random numbers when it is loaded, since it may be dropped below.
    with torch.random.fork_rng(devices=[], enabled=source.has_head):
        encoder = Encoder(source.name, device="cpu")
    transformer = encoder[0]
    pooling, after = split(encoder)
    trainable = (library.Dense, library.LayerNorm, library.Dropout, library.Normalize)
    if (
        not isinstance(transformer, Transformer)
        or transformer.tokenizer is None
        or transformer.module_output_name != "token_embeddings"
        or not pooling
        or not all(isinstance(module, trainable) for module in after)
    ):
        names = ", ".join(type(module).__name__ for module in encoder)
        raise InputError(
            f"--model {source.name}: the model consists of {names}; training needs a Transformer, a Pooling, and "
            "after it only Dense, LayerNorm, Dropout or Normalize"
        )
    first = next((name for name in (pooler, eval_pooler) if name in ("cls", "cls_before_pooler")), None)
    if first and is_causal(transformer.config):
        raise InputError(
            f"--pooler {first}: {source.name} is a decoder, whose first token attends only to itself; use --pooler avg"
        )
    if pooler == "mask" and transformer.tokenizer.mask_token_id is None:
        raise InputError("--encoder-method prompt: needs a mask, a CLS and a SEP token; use a model like BERT")
    stored = next((module for module in after if isinstance(module, library.Dense)), None) if source.has_head else None
    if stored is not None and pooler != "cls":  # a head that an earlier run kept
        after, stored = [module for module in after if module is not stored], None
        encoder.replace_modules([transformer, *pooling, *after])
    if not for_inference:  # a new run takes the dimensions from its Matryoshka loss term
        encoder.trained_dims = ()
    encoder.family = source.family
    trained = for_inference and pooler == "cls" and transformer.has_pooler and stored is None
    kept = keep_head or (for_inference and stored is not None)
    with naming_model(source.name, Path(source.folder)):
        return SentenceEncoder(encoder, source, pooler, trained, kept, stored, eval_pooler)


def load_tokenizer(source: Source) -> Any:
    """Loads the tokenizer of a model; raises ``InputError`` if its files cannot be read."""
    from transformers import AutoTokenizer

    with naming_model(source.name, Path(source.folder)), quiet():
        return AutoTokenizer.from_pretrained(source.path, local_files_only=True, trust_remote_code=False)


def check_mask(encoder: SentenceEncoder) -> None:
    """Raises ``InputError`` if texts are pooled at a mask token that the tokenizer does not add to them."""
    if encoder.pooler == "mask" and encoder.tokenizer.mask_token_id not in encoder.tokenizer("a")["input_ids"]:
        raise InputError(
            f"--pooler mask: the tokenizer of {encoder.source.name} adds no mask token; use --encoder-method prompt"
        )


MLM_HEAD = Path("mlm_head", "model.safetensors")  # next to the encoder


def mlm_head(model: Any) -> dict[str, nn.Parameter]:
    """Returns the parameters of the head of a masked language model by name, without tied token embeddings."""
    shared = model.get_input_embeddings().weight
    prefix = f"{model.base_model_prefix}."
    return {name: p for name, p in model.named_parameters() if not name.startswith(prefix) and p is not shared}
