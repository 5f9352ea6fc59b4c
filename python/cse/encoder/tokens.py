"""Tokenization of texts: truncation, padding, prompts, and the mask of the tokens that are pooled."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

TOKENIZING = threading.RLock()
"""Held while a tokenizer runs: a fast tokenizer stores the truncation and padding settings of a call."""
POOLED = "pooled_mask"
"""Key of the mask ``(B, T)`` of the tokens that are pooled; absent if all tokens are pooled."""


def token_lists(tokenizer: Any, texts: Sequence[str], max_length: int | None) -> dict[str, list[list[int]]]:
    """Tokenizes texts without padding; returns ``input_ids`` and, if the model uses them, ``token_type_ids``.

    With ``max_length`` None, texts are not truncated.
    """
    cut: dict[str, Any] = {"truncation": True, "max_length": max_length} if max_length else {"truncation": False}
    with TOKENIZING:
        tokens = tokenizer(list(texts), **cut, return_attention_mask=False, verbose=False)
    return {key: tokens[key] for key in tokenizer.model_input_names if key in tokens}


def pad(
    tokenizer: Any, tokens: Mapping[str, Sequence[Any]], rows: Sequence[int], length: int | None = None
) -> dict[str, Tensor]:
    """Pads the given rows of the output of ``token_lists``; returns token ids and attention masks ``(B, T)``."""
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


def missing_end(tokenizer: Any, settings: Mapping[str, Any]) -> str:
    """Returns a sentence if ``tokenizer_config.json``, as ``settings``, declares an end token that the tokenizer does
    not add, so that the last token, which some models pool, is the last word; else ""."""
    if not (settings.get("add_eos_token") and tokenizer.eos_token):
        return ""
    with TOKENIZING:
        ids = tokenizer("a")["input_ids"]
    if ids and ids[-1] == tokenizer.eos_token_id:
        return ""
    return (
        f"the tokenizer declares an end token ({tokenizer.eos_token}, add_eos_token) and adds none, so that the last "
        "word of a text is pooled; correct tokenizer.json"
    )


def prompt_length(tokenizer: Any, prompt: str) -> int:
    """Returns the number of tokens that a prompt adds before a text, including special tokens at the beginning."""
    if not prompt:
        return 0
    with TOKENIZING:
        ids = tokenizer(prompt)["input_ids"]
    return len(ids) - (ids[-1] in tokenizer.all_special_ids)


def with_pooled(batch: dict[str, Tensor], prompt_tokens: int) -> dict[str, Tensor]:
    """Returns a batch with the mask of the tokens that are pooled: all but the first ``prompt_tokens`` of each row."""
    if not prompt_tokens:
        return batch
    mask = batch["attention_mask"]
    # The cumulative sum numbers the tokens of a row from 1, whichever side is padded.
    return {**batch, POOLED: mask * (mask.cumsum(1) > prompt_tokens).to(mask.dtype)}
