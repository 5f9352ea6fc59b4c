"""Names in a saved folder that older releases of sentence-transformers, and programs that read its files, know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .._core import __version__

# Pooling modes by their keys before release 5.4, in the order in which they are concatenated.
LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
KINDS = ("Transformer", "Pooling", "WeightedLayerPooling", "Dense", "LayerNorm", "Dropout", "Normalize")
# Our subclasses of modules of sentence-transformers, as which a folder declares them.
SUBCLASSES = {"MaskPooling": "Pooling", "Head": "Dense"}


def write_older_names(folder: Path, max_length: int | float | None) -> None:
    """Changes the JSON files of a saved model to names that older releases, fastembed and llama.cpp can read too."""
    modules = read(folder / "modules.json")
    for entry in modules:
        written = entry["type"].rsplit(".", 1)[-1]
        kind = SUBCLASSES.get(written, written)
        if kind not in KINDS:
            continue
        part = folder / entry["path"]
        entry["type"] = f"sentence_transformers.models.{kind}"
        if kind != written:
            entry["path"] = entry["path"].replace(written, kind)
            part = part.rename(folder / entry["path"])
        if kind == "Transformer" and max_length is not None:
            length = int(max_length)
            write(part / "sentence_bert_config.json", _transformer(read(part / "sentence_bert_config.json"), length))
            write_limit(part, length)
        elif "Pooling" in kind:
            write(part / "config.json", _pooling(read(part / "config.json")))
    write(folder / "modules.json", modules)


def write_facts(folder: Path, **facts: Any) -> None:
    """Adds the version of cse, and those facts that are not empty, to the configuration of a saved model."""
    path = folder / "config_sentence_transformers.json"
    stored = read(path) | {name: value for name, value in facts.items() if value}
    stored["__version__"]["cse"] = __version__
    path.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n", encoding="utf8")


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
