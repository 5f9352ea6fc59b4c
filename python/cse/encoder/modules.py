"""Modules of sentence-transformers with the checks that it lacks, other encoders as modules, and names in folders."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer import modules as library
from torch import nn

from ..errors import InputError
from .light import LightEncoder
from .other import OtherEncoder
from .prompts import plain, templated
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
        if tokenizer is not None:
            tokenizer.model_max_length = min(int(tokenizer.model_max_length), positions(self.model))
            _fit_tokenizer(tokenizer, self.model)

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


class OtherModule(library.InputModule):
    """An ``OtherEncoder`` as a module of sentence-transformers."""

    def __init__(self, encoder: OtherEncoder | LightEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.tokenizer = None
        self.precision = "fp32"

    def preprocess(self, inputs: Sequence[str], prompt: str | None = None, **settings: Any) -> dict[str, Any]:
        """Returns the texts and the prompt."""
        return {"texts": list(inputs), "prompt": prompt or ""}

    def forward(self, features: dict[str, Any], **settings: Any) -> dict[str, Any]:
        texts, prompt = features["texts"], features["prompt"]
        size = max(len(texts), 1)
        if isinstance(self.encoder, LightEncoder):
            vectors = self.encoder.encode(texts, prompt=prompt, batch_size=size)
        else:
            before = plain(prompt, self.encoder.what)
            texts = [before + text for text in texts]
            vectors = self.encoder.encode(texts, batch_size=size, precision=self.precision)
        return {**features, "sentence_embedding": torch.from_numpy(np.ascontiguousarray(vectors))}

    def get_embedding_dimension(self) -> int:
        return self.encoder.embedding_dim

    def save(self, output_path: str, *arguments: Any, **settings: Any) -> None:
        """Raises ``InputError``: such encoders have no folder of sentence-transformers."""
        raise InputError(f"{self.encoder.what}: cannot be saved as a model of sentence-transformers")


def split(modules: Iterable[nn.Module]) -> tuple[list[nn.Module], list[nn.Module]]:
    """Returns the modules that pool token vectors (WeightedLayerPooling, Pooling), and those that follow them."""
    after = list(modules)[1:]
    kinds = (library.WeightedLayerPooling, library.Pooling)
    count = next((place for place, module in enumerate(after) if not isinstance(module, kinds)), len(after))
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


# Names in a saved folder that older releases of sentence-transformers, and programs that read its files, know

# Pooling modes by their keys before release 5.4, in the order in which they are concatenated.
LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
KINDS = ("Transformer", "Pooling", "MaskPooling", "WeightedLayerPooling", "Dense", "LayerNorm", "Dropout", "Normalize")


def write_older_names(folder: Path, max_length: int | float | None) -> None:
    """Changes the JSON files of a saved model to names that older releases, fastembed and llama.cpp can read too."""
    modules = read(folder / "modules.json")
    for entry in modules:
        kind = entry["type"].rsplit(".", 1)[-1]
        if kind not in KINDS:
            continue
        part = folder / entry["path"]
        entry["type"] = f"sentence_transformers.models.{kind.removeprefix('Mask')}"
        if kind == "MaskPooling":
            entry["path"] = entry["path"].replace(kind, "Pooling")
            part = part.rename(folder / entry["path"])
        if kind == "Transformer" and max_length is not None:
            length = int(max_length)
            write(part / "sentence_bert_config.json", _transformer(read(part / "sentence_bert_config.json"), length))
            write_limit(part, length)
        elif "Pooling" in kind:
            write(part / "config.json", _pooling(read(part / "config.json")))
    write(folder / "modules.json", modules)


def write_limit(folder: Path, max_length: int) -> None:
    """Changes ``tokenizer_config.json``, if there is one, so that it has one maximum length, ``max_length`` tokens.

    transformers copies the settings of a call from ``tokenizer.json`` to it; fastembed uses the lowest maximum.
    """
    path = folder / "tokenizer_config.json"
    if path.exists():
        of_a_call = ("max_length", "stride", "truncation_strategy")
        settings = {name: value for name, value in read(path).items() if name not in of_a_call}
        write(path, settings | {"model_max_length": max_length})


def load_as_stored(folder: Path, tokenizer: Any) -> None:
    """Changes ``tokenizer_config.json`` so that every loader uses all of ``tokenizer.json``, not only its vocabulary.

    Classes such as BertTokenizer rebuild the normalizer and the post-processor, which would lose a template.
    """
    path = folder / "tokenizer_config.json"
    # With either of these two settings, the generic class rebuilds the post-processor as well.
    settings = {name: value for name, value in read(path).items() if name not in ("add_bos_token", "add_eos_token")}
    inputs = {"model_input_names": list(tokenizer.model_input_names)}
    write(path, {**settings, **inputs, "tokenizer_class": "PreTrainedTokenizerFast"})


def _transformer(settings: dict[str, Any], max_length: int) -> dict[str, Any]:
    """Returns the settings of a transformer without those that are the defaults of all releases."""
    default = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
    if settings.get("transformer_task") == "feature-extraction" and settings.get("modality_config") == default:
        names = ("transformer_task", "modality_config", "module_output_name")
        settings = {name: value for name, value in settings.items() if name not in names}
    return {**settings, "max_seq_length": max_length, "do_lower_case": False}


def _pooling(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings of a pooling, or of an average of layers, with older keys if they suffice."""
    width = {"word_embedding_dimension": settings.pop("embedding_dimension")}
    if settings.get("include_prompt"):
        del settings["include_prompt"]
    modes = settings.get("pooling_mode")
    names = [modes] if isinstance(modes, str) else list(modes or [])
    if names and names == [mode for mode in LEGACY_MODES.values() if mode in names]:
        del settings["pooling_mode"]
        # Older releases have only the first four keys; other keys are written only if needed.
        keys = [key for key, mode in LEGACY_MODES.items() if mode in names or key in list(LEGACY_MODES)[:4]]
        width |= {key: LEGACY_MODES[key] in names for key in keys}
    return width | settings


def read(path: Path) -> Any:
    """Returns the contents of a JSON file."""
    return json.loads(path.read_text(encoding="utf8"))


def write(path: Path, value: object) -> None:
    """Writes a value to a JSON file."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf8")
