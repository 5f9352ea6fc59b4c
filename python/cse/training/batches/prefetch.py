"""Preparation of the tokens of coming batches in a background thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...augment.base import Block
from ...models.device import fixed_length, for_transfer
from ...models.running.encoder import pad, token_lists, tokenize
from ...models.tokens import with_pooled
from .batches import Batch, Batches
from .tokens import StoredTokens

if TYPE_CHECKING:
    from torch import Tensor


class Prefetcher:
    """Context manager that prepares the next two batches in a background thread.

    One thread is sufficient, because the Rust core and the tokenizers library release the GIL.

    Args:
        batches: The batches of the run.
        tokenizer: A Hugging Face tokenizer; it is copied.
        max_length: Maximum number of tokens of a text, not counting a prompt.
        part: ``part(n)`` returns the slice of the n rows of a batch that this rank encodes. Default: all rows.
        stored: Stored token ids by column number. Other columns, and augmented texts, are tokenized.
        device: Device to which the tokens will be copied.
        compiled: Whether the transformer is compiled.
    """

    def __init__(
        self,
        batches: Batches,
        tokenizer: Any,
        max_length: int,
        part: Callable[[int], slice] | None = None,
        stored: Mapping[int, StoredTokens] | None = None,
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        self.batches, self.max_length, self.stored, self.device = batches, max_length, stored or {}, device
        prompts = batches.prompts
        longest = max(prompts.limit(prompt, max_length) for prompt in (prompts.anchor, prompts.document))
        self.length = fixed_length(device, compiled, longest)
        self.part = part or (lambda rows: slice(0, rows))
        # A copy, because evaluation uses the tokenizer of the model concurrently, with a different maximum length.
        self.tokenizer = deepcopy(tokenizer)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cse-prefetch")
        self._waiting: dict[int, Future[Batch]] = {}

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def prepare(self, number: int) -> Batch:
        """Returns a batch with the tokens of this rank's rows."""
        lists: dict[object, dict[str, Any]] = {}  # token lists of blocks whose ids are compared, by _key

        def unedited(block: Block, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
            # Like stored ids, the lists are not padded; _tokens pads both.
            stored = None if block.column is None else self.stored.get(block.column)
            if stored is not None:
                return stored.take(rows)
            texts, limit = self._prompted(block, block.texts)
            return token_lists(self.tokenizer, texts, limit) if texts else {}

        def ids(block: Block, rows: npt.NDArray[np.int64]) -> Sequence[Any]:
            original = replace(block, edit=None)
            if _key(original) not in lists:
                lists[_key(original)] = unedited(original, rows)
            if block.edit is not None:
                lists[_key(block)] = self._edited(block, lists[_key(original)])
            found: Sequence[Any] = lists[_key(block)].get("input_ids", [])
            return found

        batch = self.batches.make(number, ids)
        part = self.part(len(batch.rows))
        # A rank has no rows if the last batch of an epoch has fewer rows than there are ranks.
        blocks = batch.blocks.items() if len(batch.rows[part]) else ()
        tokens = {name: self._tokens(block, batch.rows, part, lists.get(_key(block))) for name, block in blocks}
        return replace(batch, part=part, tokens=tokens)

    def _prompted(self, block: Block, texts: list[str]) -> tuple[list[str], int]:
        """Prepends the prompt of a block's column to texts; returns the texts and their maximum number of tokens."""
        prompt = self.batches.prompts.of_column(block.column)
        limit = self.batches.prompts.limit(prompt, self.max_length)
        return [prompt + text for text in texts] if prompt else texts, limit

    def _edited(self, block: Block, lists: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
        """Returns token lists after the edit of a block; special tokens, prompt and template are not edited."""
        assert block.edit is not None
        before, after = self._added(block)
        most = max(0, self.batches.prompts.longest - before - after) if self.batches.prompts.longest else None
        texts = [each[before : len(each) - after] for each in map(list, lists["input_ids"])]
        edited = [each[:most] for each in block.edit(texts)]

        def joined(each: Sequence[int], new: list[int]) -> list[int]:
            return [*each[:before], *new, *each[len(each) - after :]]

        found = {"input_ids": list(map(joined, lists["input_ids"], edited))}
        if types := lists.get("token_type_ids"):
            # The tokens of a single text have the same type.
            inner = [[int(each[before])] * len(new) if new else [] for each, new in zip(types, edited, strict=True)]
            found["token_type_ids"] = list(map(joined, types, inner))
        return found

    def _added(self, block: Block) -> tuple[int, int]:
        """Returns how many tokens are added before and after the text of a row: special tokens, prompt and template."""
        added = self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        before, after = (*added, 0).index(0), (*added[::-1], 0).index(0)
        prompts = self.batches.prompts
        return max(before, prompts.tokens.get(prompts.of_column(block.column), 0)), after

    def _length(self, block: Block) -> int | None:
        """Returns the fixed length to which a block is padded, or None."""
        if self.length is None or block.edit is None:
            return self.length
        added = sum(self._added(block))
        length = added + block.edit.method.most_tokens(self.length - added)
        return min(length, self.batches.prompts.longest or length)

    def _tokens(
        self, block: Block, rows: npt.NDArray[np.int64], part: slice, lists: dict[str, Any] | None
    ) -> dict[str, Tensor]:
        own = slice(None) if block.local else part
        stored = None if block.column is None or block.edit is not None else self.stored.get(block.column)
        if stored is not None:
            tokens = pad(self.tokenizer, stored.take(rows[part]), range(len(rows[part])), self.length)
        elif lists is not None:
            tokens = pad(self.tokenizer, lists, range(len(block.texts))[own], self._length(block))
        else:
            texts, limit = self._prompted(block, block.texts[own])
            tokens = tokenize(self.tokenizer, texts, self.length or limit, fixed=self.length is not None)
        prompts = self.batches.prompts
        tokens = with_pooled(tokens, prompts.left_out(prompts.of_column(block.column)))
        return {name: for_transfer(each, self.device) for name, each in tokens.items()}

    def get(self, step: int) -> list[Batch]:
        """Returns the batches of this step, and starts to prepare the two batches that follow them."""
        numbers = self.batches.of_step(step)
        last = len(self.batches) * len(numbers)
        for later in range(numbers.start, min(numbers.stop + 2, last)):
            if later not in self._waiting:
                self._waiting[later] = self._pool.submit(self.prepare, later)
        return [self._waiting.pop(number).result() for number in numbers]


def _key(block: Block) -> object:
    if block.edit is not None:
        return block.edit.method
    return id(block.texts) if block.column is None else block.column
