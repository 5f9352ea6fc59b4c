"""Modules of sentence-transformers with the checks and the poolings that it lacks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from sentence_transformers.sentence_transformer import modules as library
from torch import nn

from ..errors import InputError
from .checking import check_layers
from .pooling import MODES, pooled_layers
from .prompts import templated
from .resolve import base_of
from .tokens import TOKENIZING

IGNORED = ("attn_implementation", "device_map", "dtype", "quantization_config", "torch_dtype")
"""Arguments of transformers that a folder may not choose: cse chooses the attention, the device and float32."""

MASK_POOLING = "cse_mask_token"
"""A mode that sentence-transformers does not have, so that it refuses the folder instead of pooling in another way."""


def import_peft(flag: str) -> Any:
    """Returns the peft package; raises an ``InputError`` that names ``flag`` if peft is not installed."""
    try:
        import peft
    except ImportError:
        raise InputError(f"{flag} needs peft, which is not installed; run pip install 'cse[lora]'") from None
    return peft


class Transformer(library.Transformer):
    """The Transformer of sentence-transformers, which tokenizes under a lock and refuses incomplete or faulty files."""

    has_pooler = False
    """Whether the checkpoint has the weights of a pooler."""

    def __init__(
        self,
        model_name_or_path: str,
        *,
        model_kwargs: dict[str, Any] | None = None,
        max_seq_length: Any = None,
        tokenizer_name_or_path: str | None = None,
        backend: str = "torch",
        **settings: Any,
    ) -> None:
        if tokenizer_name_or_path is not None:
            raise InputError("tokenizer_name_or_path names another tokenizer; copy it into the folder of the model")
        kept = {name: value for name, value in (model_kwargs or {}).items() if name not in IGNORED}
        if backend == "torch":
            kept["dtype"] = torch.float32
        limit = None if max_seq_length is None else checked_length(max_seq_length)
        super().__init__(model_name_or_path, model_kwargs=kept, max_seq_length=limit, backend=backend, **settings)
        tokenizer: Any = self.tokenizer
        if tokenizer is not None:
            tokenizer.model_max_length = min(checked_length(tokenizer.model_max_length), positions(self.model))
            _fit_tokenizer(tokenizer, self.model)
            special = tokenizer.num_special_tokens_to_add() if hasattr(tokenizer, "num_special_tokens_to_add") else 0
            if tokenizer.model_max_length <= special:  # texts could not be truncated
                raise InputError(
                    f"its maximum length is {tokenizer.model_max_length}, but its tokenizer adds {special} tokens to a "
                    "text; set a larger max_seq_length"
                )

    def preprocess(self, inputs: Any, prompt: str | None = None, **settings: Any) -> dict[str, Any]:
        """Returns the tokens of texts; see sentence-transformers."""
        with TOKENIZING, templated(self.tokenizer, prompt) as before:
            tokens: dict[str, Any] = super().preprocess(inputs, prompt=before or None, **settings)
        return tokens

    def _load_config(self, *arguments: Any) -> tuple[Any, bool]:
        config, adapted = super()._load_config(*arguments)
        config._attn_implementation = None  # transformers then chooses one for the type of the model
        config.chunk_size_feed_forward = 0  # the result is the same, but numbers of tokens must be a multiple
        return config, adapted

    def _load_model(
        self, folder: str, task: str, config: Any, backend: str, adapted: bool, **settings: Any
    ) -> nn.Module:
        if backend != "torch":
            model: nn.Module = super()._load_model(folder, task, config, backend, adapted, **settings)
            return model
        place = Path(folder, settings.pop("subfolder", ""))
        base = base_of(place) if adapted else None
        check_layers(Path(base or place), config)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, report = super()._load_model(
                base or str(place),
                task,
                config,
                backend,
                False,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                **settings,
            )
        lost = sorted(report["missing_keys"])
        missing = [name for name in lost if task != "feature-extraction" or "pooler." not in f".{name}"]
        if missing:
            raise InputError(
                f"its files lack {len(missing)} of the model's weights ({missing[0]}, ...); the checkpoint is "
                "incomplete"
            )
        if report.get("mismatched_keys"):
            name = sorted(report["mismatched_keys"], key=str)[0]
            raise InputError(f"the shape of {name} does not match its config.json")
        if adapted:
            peft = import_peft("--model")
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Found missing adapter keys")
                try:
                    model = peft.PeftModel.from_pretrained(model, str(place)).merge_and_unload()
                except UserWarning:
                    raise InputError(
                        "its adapter lacks weights that its adapter_config.json declares; save the adapter again"
                    ) from None
        for name, weights in model.named_parameters():
            if not torch.isfinite(weights).all():
                raise InputError(f"the weight {name} holds NaN or infinity; use another checkpoint")
        self.has_pooler = getattr(model, "pooler", None) is not None and len(missing) == len(lost)
        return model


def checked_length(value: Any) -> int:
    """Returns a maximum length as an integer; raises ``InputError`` if it is not a number of at least 1."""
    try:
        length = int(value)
    except (TypeError, ValueError, OverflowError):
        length = 0
    if length < 1 or isinstance(value, bool) or (isinstance(value, float) and length != value):
        raise InputError(
            f"its maximum length (max_seq_length or model_max_length) is {value!r}; set a positive integer"
        )
    return length


def positions(model: Any) -> int:
    """Returns the largest number of tokens for which a transformer has absolute positions."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit < 1:  # XLNet has -1
        return 10**9
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), nn.Embedding):
            return max(limit - padding - 1, 1)
    return int(limit)


def is_causal(config: Any) -> bool:
    """Returns whether a model is decoder-only: transformers has a causal LM for its type, but no masked LM."""
    from transformers.models.auto import modeling_auto

    causal = config.model_type in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    # EmbeddingGemma, and decoders that were converted to encoders, are bidirectional and have one of these settings.
    if getattr(config, "use_bidirectional_attention", None) or getattr(config, "is_causal", True) is False:
        return False
    return causal and config.model_type not in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _fit_tokenizer(tokenizer: Any, model: Any) -> None:
    """Checks that a tokenizer suits a model; pads with the EOS token if a decoder has no padding token."""
    if tokenizer.pad_token is None:
        if not is_causal(model.config) or tokenizer.eos_token is None:
            raise InputError("its tokenizer has no padding token; set tokenizer.pad_token and save the tokenizer again")
        tokenizer.pad_token = tokenizer.eos_token
    if "attention_mask" not in tokenizer.model_input_names:  # padding would be read as text
        raise InputError(
            "its tokenizer makes no attention mask; add attention_mask to model_input_names in tokenizer_config.json"
        )
    try:
        table = model.get_input_embeddings()
    except NotImplementedError:
        return
    if type(table) is nn.Embedding and len(tokenizer) > table.num_embeddings and model.config.model_type != "canine":
        raise InputError(
            f"its tokenizer has {len(tokenizer):,} tokens, but the model has embeddings for only "
            f"{table.num_embeddings:,}; the tokenizer belongs to another model"
        )


def split(modules: Iterable[nn.Module]) -> tuple[list[nn.Module], list[nn.Module]]:
    """Returns the modules that pool token vectors (WeightedLayerPooling, Pooling), and those that follow them."""
    after = list(modules)[1:]
    kinds = (library.WeightedLayerPooling, library.Pooling)
    count = next((place for place, module in enumerate(after) if not isinstance(module, kinds)), len(after))
    return after[:count], after[count:]


def check_widths(modules: Sequence[nn.Module], remedy: str = "correct the files of the folder") -> None:
    """Raises ``InputError`` if a module's input width differs from the output width of the module before it."""
    width = None
    module: Any
    for module in modules:
        wanted = getattr(module, "in_features", None) or getattr(module, "dimension", None)
        if isinstance(module, (library.Pooling, library.WeightedLayerPooling)):
            wanted = module.embedding_dimension
        reads = getattr(module, "module_input_name", "sentence_embedding")  # else it changes something else
        if wanted is not None and width is not None and wanted != width and reads == "sentence_embedding":
            raise InputError(
                f"the module {type(module).__name__} takes {wanted} dimensions, but gets {width}; {remedy}"
            )
        if hasattr(module, "get_embedding_dimension"):
            width = module.get_embedding_dimension()


def normalizes(modules: Sequence[nn.Module]) -> bool:
    """Returns whether the last module scales embeddings to unit length."""
    return bool(modules) and isinstance(modules[-1], library.Normalize)


class MaskPooling(library.Pooling):
    """Pools the last mask token, for texts in a template that has one (PromptBERT); a mode of Pooling in a folder."""

    POOLING_MODES = (MASK_POOLING,)
    mask_token: int | None = None

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **settings: Any) -> Any:
        """Returns the pooling that a folder declares; a plain Pooling for other modes."""
        config = cls.load_config(model_name_or_path, subfolder=subfolder, local_files_only=True)
        kind = cls if config.get("pooling_mode") in (MASK_POOLING, [MASK_POOLING]) else library.Pooling
        return kind(**config)

    def on_model_ready(self, model: Any) -> None:
        self.mask_token = model.tokenizer.mask_token_id
        if self.mask_token is None:
            raise InputError("--pooler mask: the tokenizer has no mask token; use another pooler")

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        states = features["token_embeddings"]
        marked = features["input_ids"].eq(self.mask_token).long()
        places = (marked * marked.new_ones(marked.shape).cumsum(1)).argmax(1)
        index = places[:, None, None].expand(-1, 1, states.shape[-1])
        return {**features, "sentence_embedding": states.gather(1, index)[:, 0]}


def pooling_modules(pooler: str, transformer: library.Transformer, include_prompt: bool = True) -> list[nn.Module]:
    """Returns the modules of a pooler, which follow a transformer; see ``cse.encoder.pooling``."""
    size = transformer.get_embedding_dimension()
    layers = pooled_layers(pooler, int(getattr(transformer.config, "num_hidden_layers", 0)))
    if pooler == "mask":
        pooling = MaskPooling(size, MASK_POOLING)
        pooling.mask_token = transformer.tokenizer.mask_token_id
        return [pooling]
    if layers is None:
        modes = [MODES["cls_before_pooler" if part == "cls" else part] for part in pooler.split("+")]
        return [library.Pooling(size, modes, include_prompt=include_prompt)]
    transformer.config.output_hidden_states = True
    weights = torch.zeros(layers[1] + 1 - layers[0])
    weights[[layer - layers[0] for layer in layers]] = 1.0
    averaged = library.WeightedLayerPooling(size, layers[1], layers[0], nn.Parameter(weights, requires_grad=False))
    return [averaged, library.Pooling(size, "mean", include_prompt=include_prompt)]


def pooler_of(pooling: Sequence[nn.Module]) -> str | None:
    """Returns the name of the pooler that consists of these modules; None if it has none in ``cse.encoder.pooling``."""
    if not pooling or not isinstance(pooling[-1], library.Pooling) or len(pooling) > 2:
        return None
    if isinstance(pooling[-1], MaskPooling):
        return "mask"
    modes = pooling[-1].pooling_mode
    names = {theirs: ours for ours, theirs in MODES.items()}
    listed = [modes] if isinstance(modes, str) else list(modes)
    if len(set(listed)) < len(listed):
        return None
    if len(pooling) == 1:
        return "+".join(names[mode] for mode in listed)
    layers: Any = pooling[0]
    weights = layers.layer_weights.tolist()
    used = [layers.layer_start + place for place, weight in enumerate(weights) if weight]
    equal = len({weight for weight in weights if weight}) == 1
    if listed != ["mean"] or not equal:
        return None
    averages = ("avg_first_last", "avg_embed_last", "avg_top2")
    return next((name for name in averages if used == pooled_layers(name, layers.num_hidden_layers)), None)
