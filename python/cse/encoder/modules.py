"""The modules that an encoder consists of: sentence-transformers' with the checks that it lacks, and ours."""

from __future__ import annotations

import inspect
import math
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from sentence_transformers.sentence_transformer import modules as library
from torch import nn

from ..errors import InputError
from .prompts import templated
from .resolve import base_of
from .tokens import TOKENIZING

IGNORED = ("attn_implementation", "device_map", "dtype", "quantization_config", "torch_dtype")
"""Arguments of transformers that a folder may not choose: cse chooses the attention, the device and float32."""
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "encoder_layers", "num_encoder_layers")


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
        limit = None if max_seq_length is None else int(max_seq_length)
        super().__init__(model_name_or_path, model_kwargs=kept, max_seq_length=limit, backend=backend, **settings)
        tokenizer: Any = self.tokenizer
        # A tokenizer that was not made for the model may return token types, which the model may not accept.
        self.takes_token_types = "token_type_ids" in inspect.signature(self.model.forward).parameters
        if tokenizer is not None:
            tokenizer.model_max_length = min(int(tokenizer.model_max_length), positions(self.model))
            _fit_tokenizer(tokenizer, self.model)
            check_room(int(self.max_seq_length), tokenizer.num_special_tokens_to_add())

    @property
    def pools(self) -> bool:
        """Whether the output is a sentence embedding, and not one vector for each token."""
        return bool(self.module_output_name != "token_embeddings")

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
        place = str(Path(folder, settings.pop("subfolder", "")))
        base = base_of(Path(place)) if adapted else None
        check_layers(Path(base or place), config)
        settings |= {"output_loading_info": True, "ignore_mismatched_sizes": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, report = super()._load_model(base or place, task, config, backend, False, **settings)
        lost = report["missing_keys"]
        missing = {name for name in lost if task != "feature-extraction" or "pooler." not in f".{name}"}
        if faulty := sorted([*missing, *(name for name, *_ in report.get("mismatched_keys") or ())]):
            raise InputError(
                f"{len(faulty)} of the weights that its config.json declares are missing or have another shape "
                f"({faulty[0]}, ...); the checkpoint is incomplete"
            )
        check_left_over(model, report["unexpected_keys"])
        if adapted:
            peft = import_peft("--model")
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Found missing adapter keys")
                model = peft.PeftModel.from_pretrained(model, place).merge_and_unload()
        self.has_pooler = getattr(model, "pooler", None) is not None and len(missing) == len(lost)
        return model


def check_layers(folder: Path, config: Any) -> None:
    """Raises ``InputError`` if a configuration has more layers than its weights can have: making them may not end."""
    stored = sum(path.stat().st_size for path in folder.iterdir() if path.suffix in (".safetensors", ".bin"))
    for name in LAYERS:
        count = getattr(config, name, 1)
        if isinstance(count, int) and count > 64 and count * 256 > stored:
            raise InputError(f"{name} in its config.json is {count:,}, but its weights have only {stored:,} bytes")


def check_left_over(model: Any, names: Iterable[str]) -> None:
    """Raises ``InputError`` if weights that a model did not load, by name, are of layers after its last one.

    Other weights may be left over: weights of heads (``cls.``, ``lm_head.``, ``classifier.``) and of a pooler.
    """
    lists = {name: len(part) for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    parts = {name: re.match(r"(.*?)\.(\d+)\.", name.removeprefix(f"{model.base_model_prefix}.")) for name in names}
    found = [name for name, part in parts.items() if part and int(part[2]) >= lists.get(part[1], math.inf)]
    if found:
        raise InputError(
            f"{len(found)} of its weights are of layers that its config.json does not declare ({min(found)}, ...); "
            "correct the number of layers there"
        )


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


def check_room(length: int, special: int) -> None:
    """Raises ``InputError`` if texts of at most ``length`` tokens hold only the special tokens that are added."""
    if length <= special:
        raise InputError(f"its maximum length, {length} tokens, leaves no room for text; raise it")


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
    if tokenizer.pad_token is None and is_causal(model.config):
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token is None or "attention_mask" not in tokenizer.model_input_names:
        raise InputError(
            "its tokenizer has no padding token, or makes no attention mask, without which padding would be read as "
            "text; set tokenizer.pad_token, and attention_mask in tokenizer.model_input_names, and save the tokenizer"
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


# Modules of training, and of evaluation


class Head(library.Dense):
    """The MLP head of SimCSE, with the initial weights of BERT: a linear layer and a tanh after the pooling.

    A folder declares it as a Dense module.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config.hidden_size, config.hidden_size, activation_function=nn.Tanh())
        nn.init.normal_(self.linear.weight, std=getattr(config, "initializer_range", 0.02))
        nn.init.zeros_(self.linear.bias)


class OnlyIn(nn.Sequential):
    """Modules of an encoder that are applied in one mode only: ``training``, and then not saved, or ``evaluation``."""

    def __init__(self, mode: Literal["training", "evaluation"], *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.mode = mode

    @property
    def applies(self) -> bool:
        """Whether the modules are applied in the present mode."""
        return self.training == (self.mode == "training")

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        for module in self if self.applies else ():
            features = module(features)
        return features


def in_evaluation(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Returns the modules of an encoder that are applied in evaluation, which are those that are saved."""
    return _chosen(modules, lambda module: module.mode == "evaluation")


def applied(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Returns the modules of an encoder that are applied in its present mode."""
    return _chosen(modules, lambda module: module.applies)


def _chosen(modules: Iterable[nn.Module], choose: Callable[[OnlyIn], bool]) -> list[nn.Module]:
    groups = (list(module) * choose(module) if isinstance(module, OnlyIn) else [module] for module in modules)
    return [module for group in groups for module in group]


def split(modules: Iterable[nn.Module]) -> tuple[list[nn.Module], list[nn.Module]]:
    """Returns the modules that pool token vectors (WeightedLayerPooling, Pooling), and those that follow them."""
    after = list(modules)[1:]
    kinds = (library.WeightedLayerPooling, library.Pooling)
    firsts = [module[0] if isinstance(module, OnlyIn) else module for module in after]
    count = next((place for place, module in enumerate(firsts) if not isinstance(module, kinds)), len(after))
    return after[:count], after[count:]


def check_width(pooling: Sequence[Any], after: Sequence[nn.Module], declared: str | None) -> None:
    """Raises ``InputError`` if the module after a pooling was made for another number of dimensions."""
    width = pooling[-1].get_embedding_dimension()
    for module in after[:1]:
        wanted = getattr(module, "in_features", None) or getattr(module, "dimension", None) or width
        if wanted != width:
            raise InputError(
                f"the module {type(module).__name__} takes {wanted} dimensions, but gets {width}; use the pooler of "
                f"the model, {declared}"
            )


def normalizes(modules: Sequence[nn.Module]) -> bool:
    """Returns whether the last module scales embeddings to unit length."""
    return bool(modules) and isinstance(modules[-1], library.Normalize)
