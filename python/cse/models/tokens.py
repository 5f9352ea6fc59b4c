"""Tokenization of texts: truncation, padding, prompts, and the mask of the tokens that are pooled."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .prompts import PLACE

TOKENIZING = threading.RLock()
"""Held while a tokenizer runs: a fast tokenizer stores the truncation and padding settings of a call, so that calls of
several threads with different settings would change each other's results."""
POOLED = "pooled_mask"
"""Key of the mask ``(B, T)`` of the tokens that are pooled; absent if all tokens are pooled."""


class Template:
    """The token ids that a template puts before and after a text, including the special tokens of the tokenizer.

    Args:
        before: Part before the text. If it ends in a space and the tokenizer distinguishes words by the space before
            them, the text is tokenized with this space.
        after: Part after the text.
        tokenizer: A fast tokenizer.

    Raises:
        InputError: If the tokenizer is not a fast one.
    """

    def __init__(self, before: str, after: str, tokenizer: Any) -> None:
        if getattr(tokenizer, "backend_tokenizer", None) is None:
            raise InputError("--prompt: a template with {text} needs a fast tokenizer; give a text without {text}")

        def ids(text: str) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []

        whole, inner = tokenizer("a")["input_ids"], ids("a")
        at = next(each for each in range(len(whole)) if whole[each : each + len(inner)] == inner)
        self.spaced = before != before.rstrip() and ids(" a") != inner
        self.prefix: list[int] = [*whole[:at], *ids(before.rstrip())]
        self.suffix: list[int] = [*ids(after), *whole[at + len(inner) :]]
        self.added = len(self.prefix) + len(self.suffix) - (len(whole) - len(inner))
        """Number of tokens that the template adds to a text with special tokens."""

    def apply(self, tokenizer: Any) -> None:
        """Installs the template in a fast tokenizer, which then adds it to every text and truncates only the text."""
        from tokenizers import normalizers
        from tokenizers.processors import TemplateProcessing

        backend = tokenizer.backend_tokenizer
        parts = {name: ids for name, ids in (("before", self.prefix), ("after", self.suffix)) if ids}
        named = tokenizer.convert_ids_to_tokens
        pieces = [{"id": name, "ids": ids, "tokens": named(ids)} for name, ids in parts.items()]
        order = [name for name in ("before", "$A", "after") if name == "$A" or name in parts]
        backend.post_processor = TemplateProcessing(single=" ".join(order), special_tokens=pieces)
        if self.spaced:
            own = [] if backend.normalizer is None else [backend.normalizer]
            backend.normalizer = normalizers.Sequence([normalizers.Prepend(" "), *own])


def template_of(prompt: str, tokenizer: Any) -> Template:
    """Returns the template of a prompt; raises ``InputError`` if it does not have exactly one place for the text."""
    before, _, after = prompt.partition(PLACE)
    if PLACE in after:
        raise InputError(f"--prompt {prompt!r} has {PLACE} twice; leave one of them")
    return Template(before, after, tokenizer)


@contextmanager
def templated(tokenizer: Any, prompt: str | None) -> Iterator[str]:
    """Context manager in which a tokenizer adds a template to texts; yields the prompt to put before them, if any.

    If the prompt has no place for the text, the tokenizer is not changed, and the prompt is yielded.
    """
    if PLACE not in (prompt or ""):
        yield prompt or ""
        return
    template = template_of(str(prompt), tokenizer)
    with TOKENIZING:
        backend = tokenizer.backend_tokenizer
        own = backend.post_processor, backend.normalizer
        template.apply(tokenizer)
        try:
            yield ""
        finally:
            backend.post_processor, backend.normalizer = own


def tokenize(tokenizer: Any, texts: Sequence[str], max_length: int, fixed: bool = False) -> dict[str, Tensor]:
    """Converts a batch of texts to token ids and attention masks ``(B, T)``.

    T is ``max_length`` if ``fixed``, else the length of the longest text, capped at ``max_length``.
    """
    padding = "max_length" if fixed else True
    with TOKENIZING:
        found = tokenizer(list(texts), padding=padding, truncation=True, max_length=max_length, return_tensors="pt")
    return dict(found)


def token_lists(tokenizer: Any, texts: Sequence[str], max_length: int) -> dict[str, list[list[int]]]:
    """Tokenizes texts without padding.

    Returns ``input_ids`` and, if the model uses them, ``token_type_ids``, with one list per text.
    """
    with TOKENIZING:
        found = tokenizer(list(texts), truncation=True, max_length=max_length, return_attention_mask=False)
    return {key: found[key] for key in tokenizer.model_input_names if key in found}


def pad(
    tokenizer: Any, tokens: Mapping[str, Sequence[Any]], rows: Sequence[int], length: int | None = None
) -> dict[str, Tensor]:
    """Pads the given rows of the output of ``token_lists``; returns token ids and attention masks ``(B, T)``.

    Padding is added on the tokenizer's padding side. T is ``length`` if it is given, else the length of the longest of
    these rows.
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


def prompt_length(tokenizer: Any, prompt: str) -> int:
    """Returns the number of tokens that a prompt adds before a text, including special tokens at the beginning.

    As in sentence-transformers, the prompt is tokenized alone, and a special token at its end is not counted.
    """
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
