"""A masked language model around the transformer of an encoder, and its head, which a folder stores next to it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from ..errors import InputError, first_line

MLM_HEAD = Path("mlm_head", "model.safetensors")  # next to the encoder


def masked_language_model(encoder: Any) -> tuple[nn.Module, bool]:
    """Returns a masked language model with the transformer of an encoder that is trained, and whether its head is new.

    The head is from the checkpoint, else from the folder ``mlm_head`` next to its weights, else a new one.
    """
    from transformers import AutoModelForMaskedLM

    name, path = encoder.source.name, Path(encoder.source.path)
    if encoder.tokenizer.mask_token_id is None:
        raise InputError(f"--mlm-weight: the tokenizer of {name} has no mask token; use a model like BERT")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, report = AutoModelForMaskedLM.from_pretrained(path, local_files_only=True, output_loading_info=True)
        model = model.float()
        setattr(model, model.base_model_prefix, encoder.backbone)
        output = model.get_output_embeddings()
        if output is not None and getattr(model.config, "tie_word_embeddings", True):
            output.weight = encoder.backbone.get_input_embeddings().weight
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


def save_head(model: nn.Module, folder: Path) -> None:
    """Saves the head of a masked language model in ``folder``, from which ``masked_language_model`` loads it."""
    (folder / MLM_HEAD).parent.mkdir()
    head = {name: values.detach().cpu().contiguous() for name, values in mlm_head(model).items()}
    save_file(head, folder / MLM_HEAD)


def mlm_head(model: Any) -> dict[str, nn.Parameter]:
    """Returns the parameters of the head of a masked language model by name, without tied token embeddings."""
    shared = model.get_input_embeddings().weight
    prefix = f"{model.base_model_prefix}."
    return {name: p for name, p in model.named_parameters() if not name.startswith(prefix) and p is not shared}
