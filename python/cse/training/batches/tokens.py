"""Token ids: stored in memory-mapped files of the cache, and made for coming batches in a background thread.

Sentences that no augmentation changes are tokenized only once, instead of in every epoch and run. ``ids.u16`` or
``ids.u32`` holds the ids of all rows in one sequence, each row truncated at the maximum length. ``ends.u64`` holds, for
each row, the position after its last id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...augment.base import Block
from ...background import ProgressCallback
from ...data.corpus import Corpus
from ...data.entries import Entry, cache_folder, find_entry, open_entry
from ...encoder.device import fixed_length, for_transfer, multiple_of_lengths
from ...encoder.tokens import TOKENIZING, pad, token_keys, token_lists, with_pooled
from ...io import naming
from .batches import CLASSES, SENTENCES, Batch, Batches

# Number of rows that are tokenized at a time.
BLOCK = 16384
DTYPES = {"u16": "<u2", "u32": "<u4"}


class StoredTokens:
    """The token ids of all rows of a corpus, mapped into memory, and ``with_types`` their token type ids, all 0."""

    def __init__(self, entry: Entry, with_types: bool) -> None:
        self.with_types = with_types
        kind = entry.meta["dtype"]
        self.ends = np.memmap(entry.folder / "ends.u64", dtype="<u8", mode="r")
        self.ids = np.memmap(entry.folder / f"ids.{kind}", dtype=DTYPES[kind], mode="r")

    def take(self, rows: npt.NDArray[np.int64]) -> dict[str, list[npt.NDArray[np.integer]]]:
        """Returns the token ids of some rows, in the form of ``cse.encoder.tokens.token_lists``."""
        ids = []
        for row in rows.tolist():
            start = int(self.ends[row - 1]) if row else 0
            ids.append(np.asarray(self.ids[start : int(self.ends[row])]))
        return {"input_ids": ids, **({"token_type_ids": [sequence * 0 for sequence in ids]} if self.with_types else {})}


def open_tokens(
    batches: Batches,
    columns: Sequence[Corpus],
    tokenizer: Any,
    max_length: int,
    reading: Mapping[str, Any],
    progress: ProgressCallback,
) -> dict[int, StoredTokens]:
    """Returns, by column number, the stored token ids of the columns whose rows are encoded unchanged.

    Only runs that read the whole corpus store token ids, and only of corpora in the cache; shorter runs use them.
    """
    whole = len(batches) * batches.accumulate >= batches.per_epoch
    used = {block.column for block in batches[0].blocks.values() if block.column is not None}
    stored = {}
    for number in sorted(used):
        corpus = columns[number]
        if corpus.folder is not None and all(os.path.isfile(file.path) for file in corpus.files):  # not a stream
            prompt = batches.prompts.of_column(number)
            limit = batches.prompts.limit(prompt, max_length)
            entry = _open(corpus, deepcopy(tokenizer), limit, reading, whole, progress, prompt)
            if entry is not None:
                stored[number] = StoredTokens(entry, "token_type_ids" in tokenizer.model_input_names)
    return stored


def _open(
    corpus: Corpus,
    tokenizer: Any,
    max_length: int,
    reading: Mapping[str, Any],
    may_write: bool,
    progress: ProgressCallback,
    prompt: str,
) -> Entry | None:
    example = token_lists(tokenizer, corpus.take([0]), max_length)
    if any(map(any, example.get("token_type_ids", []))):
        return None
    backend = tokenizer.backend_tokenizer  # holds truncation and padding of its last call, which must not be in the key
    backend.no_truncation()
    backend.no_padding()
    key = {
        "version": 1,
        "files": [[file.xxh3, file.rows, file.column] for file in corpus.files],
        "encoding_errors": reading["encoding_errors"],
        "max_line_bytes": reading["max_line_bytes"],
        "tokenizer": hashlib.sha256(backend.to_str().encode()).hexdigest(),
        "max_length": max_length,
        **({"prompt": prompt} if prompt else {}),
    }
    kept = cache_folder(reading["cache"])
    if not may_write:
        return find_entry(kept, "tokens", key)

    def write(folder: Path) -> dict[str, Any]:
        kind = "u16" if len(tokenizer) <= 2**16 else "u32"
        total, rows = 0, len(corpus)
        backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
        with naming(folder), open(folder / f"ids.{kind}", "wb") as ids, open(folder / "ends.u64", "wb") as ends:
            for start in range(0, rows, BLOCK):
                texts = [prompt + text for text in corpus.take(range(start, min(start + BLOCK, rows)))]
                lists = [encoding.ids for encoding in backend.encode_batch_fast(texts)]
                lengths = np.fromiter(map(len, lists), dtype="<u8", count=len(lists))
                count = int(lengths.sum())
                ids.write(np.fromiter(chain.from_iterable(lists), dtype=DTYPES[kind], count=count).tobytes())
                ends.write((np.cumsum(lengths) + np.uint64(total)).astype("<u8").tobytes())
                total += count
                progress("token ids", start + len(texts), rows, "sentences")
        return {"rows": rows, "dtype": kind}

    return open_entry(kept, "tokens", key, write)


class Prefetcher:
    """Context manager that prepares the next two batches in a background thread.

    ``max_length`` does not count a prompt; for ``part`` see ``Batches``; ``stored`` holds token ids by column number.
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
        self.longest = max(prompts.limit(prompt, max_length) for prompt in (prompts.anchor, prompts.document))
        self.length = fixed_length(device, compiled, self.longest)
        self.multiple = multiple_of_lengths(device)
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
            sequences: Sequence[Any] = lists[_key(block)].get("input_ids", [])
            return sequences

        batch = self.batches.make(number, ids)
        part = self.part(len(batch.rows))
        # A rank has no rows if the last batch of an epoch has fewer rows than there are ranks.
        blocks = batch.blocks.items() if len(batch.rows[part]) else ()
        tokens = {name: self._tokens(block, batch.rows, part, lists.get(_key(block))) for name, block in blocks}
        keys = {} if self.batches.keep_duplicates else self._keys(replace(batch, part=part, tokens=tokens))
        every = torch.cat([*keys.values(), torch.zeros(0, dtype=torch.int64)])
        repeats = len(batch.rows[part]) < len(batch.rows) or len(torch.unique(every)) < len(every)
        batch = replace(batch, part=part, tokens=tokens, keys=keys, repeats=repeats)
        packed = batch.pack()
        return replace(batch, packed=replace(packed, memory=for_transfer(packed.memory, self.device)))

    def _keys(self, batch: Batch) -> dict[str, Tensor]:
        prompts = self.batches.prompts
        keys = {name: torch.zeros(0, dtype=torch.int64) for name in batch.blocks}  # if this rank has no rows
        for name, tokens in batch.tokens.items():
            prompt = prompts.tokens.get(prompts.of_column(batch.blocks[name].column), 0)
            keys[name] = token_keys(self.tokenizer, tokens["input_ids"], tokens["attention_mask"], prompt)
        if batch.sentences is not None:
            keys[SENTENCES] = torch.from_numpy(batch.sentences[batch.part].copy())
        if batch.classes is not None:
            keys[CLASSES] = torch.from_numpy(batch.classes[batch.part].copy())
        return keys

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
        texts = [text[before : len(text) - after] for text in map(list, lists["input_ids"])]
        edited = [text[:most] for text in block.edit(texts)]

        def joined(row: Sequence[int], new: list[int]) -> list[int]:
            return [*row[:before], *new, *row[len(row) - after :]]

        result = {"input_ids": list(map(joined, lists["input_ids"], edited))}
        if types := lists.get("token_type_ids"):
            # The tokens of a single text have the same type.
            inner = [[int(row[before])] * len(new) if new else [] for row, new in zip(types, edited, strict=True)]
            result["token_type_ids"] = list(map(joined, types, inner))
        return result

    def _added(self, block: Block) -> tuple[int, int]:
        """Returns how many tokens are added before and after the text of a row: special tokens, prompt and template."""
        with TOKENIZING:
            added = self.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
        before, after = (*added, 0).index(0), (*added[::-1], 0).index(0)
        prompts = self.batches.prompts
        return max(before, prompts.tokens.get(prompts.of_column(block.column), 0)), after

    def _tokens(
        self, block: Block, rows: npt.NDArray[np.int64], part: slice, lists: dict[str, Any] | None
    ) -> dict[str, Tensor]:
        own = slice(None) if block.local else part
        stored = None if block.column is None or block.edit is not None else self.stored.get(block.column)
        length, prompts = self.length, self.batches.prompts
        if stored is not None:
            lists, places = stored.take(rows[part]), range(len(rows[part]))
        elif lists is not None:
            places = range(len(block.texts))[own]
        else:
            texts, limit = self._prompted(block, block.texts[own])
            lists, places = token_lists(self.tokenizer, texts, length or limit), range(len(texts))
        if length is None:
            longest = max(len(lists["input_ids"][place]) for place in places)
            length = max(longest, min(-(-longest // self.multiple) * self.multiple, self.longest))
        elif block.edit is not None:
            added = sum(self._added(block))
            length = added + block.edit.method.most_tokens(length - added)
            length = min(length, prompts.longest or length)
        tokens = pad(self.tokenizer, lists, places, length)
        return with_pooled(tokens, prompts.left_out(prompts.of_column(block.column)))

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
