"""The token ids of a batch, and of a corpus in memory-mapped files of the cache.

Sentences that no augmentation changes are tokenized only once, instead of in every epoch and run. ``ids.u16`` or
``ids.u32`` holds the ids of all rows in one sequence, each row truncated at the maximum length. ``ends.u64`` holds, for
each row, the position after its last id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...augment.base import Block
from ...background import ProgressCallback
from ...data.corpus import Corpus
from ...data.entries import Entry, cache_folder, find_entry, open_entry
from ...encoder.device import fixed_length, multiple_of_lengths
from ...encoder.prompts import TrainingPrompts
from ...encoder.tokens import TOKENIZING, pad, token_lists, with_pooled
from ...identity import token_keys
from ...io import naming
from .texts import Batches, Texts

# Number of rows that are tokenized at a time.
BLOCK = 16384
DTYPES = {"u16": "<u2", "u32": "<u4"}


class StoredTokens:
    """The token ids of all rows of a corpus, mapped into memory, and ``with_types`` their token type ids, all 0."""

    def __init__(self, entry: Entry, with_types: bool) -> None:
        self.with_types = with_types
        kind = entry.meta["dtype"]
        # As arrays: to take a row of a memmap object takes five times as long.
        self.ends = np.asarray(np.memmap(entry.folder / "ends.u64", dtype="<u8", mode="r"))
        self.ids = np.asarray(np.memmap(entry.folder / f"ids.{kind}", dtype=DTYPES[kind], mode="r"))

    def take(self, rows: npt.NDArray[np.int64]) -> dict[str, list[npt.NDArray[np.integer]]]:
        """Returns the token ids of some rows, in the form of ``cse.encoder.tokens.token_lists``."""
        ids = []
        for row in rows.tolist():
            start = int(self.ends[row - 1]) if row else 0
            ids.append(self.ids[start : int(self.ends[row])])
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
    whole = len(batches) * batches.order.accumulate >= batches.order.per_epoch
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


@dataclass(frozen=True)
class Ids:
    """The token ids of the texts of a block, not padded."""

    lists: Mapping[str, Sequence[Any]]  # see cse.encoder.tokens.token_lists
    own: Sequence[int]  # positions of the rows of this rank


class BatchTokens:
    """The token ids of batches: texts that are encoded unchanged are ``stored``, by column number.

    ``max_length`` does not count a prompt.
    """

    def __init__(
        self,
        tokenizer: Any,
        max_length: int,
        prompts: TrainingPrompts,
        stored: Mapping[int, StoredTokens],
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        self.max_length, self.prompts, self.stored = max_length, prompts, stored
        self.longest = max(prompts.limit(prompt, max_length) for prompt in (prompts.anchor, prompts.document))
        self.length = fixed_length(device, compiled, self.longest)
        self.multiple = multiple_of_lengths(device)
        # A copy, because evaluation uses the tokenizer of the model concurrently, with a different maximum length.
        self.tokenizer = deepcopy(tokenizer)

    def of(self, batch: Texts, part: slice) -> tuple[Ids | None, dict[str, Ids]]:
        """Returns the token ids of the sentences, if edited ones are compared with them, and of each block by name.

        They cover all rows for blocks that are compared, and this rank's, ``part``, for the others.
        """
        rows, every = batch.rows, range(len(batch.rows))
        compared = any(block.edited for block in batch.blocks.values())
        sentences = Block(batch.sentences, (), column=0)
        original = Ids(self._lists(sentences, rows), every[part]) if compared else None
        found = {}
        for name, block in batch.blocks.items():
            if original is not None and block.column == 0:
                found[name] = original if block.edit is None else replace(original, lists=self._edited(block, original))
            elif block.local:
                found[name] = Ids(self._lists(block, rows[part]), range(len(block.texts)))
            elif block.edited:
                found[name] = Ids(self._lists(block, rows), every[part])
            else:
                block = replace(block, texts=block.texts[part])
                found[name] = Ids(self._lists(block, rows[part]), range(len(block.texts)))
        return original, found

    def _lists(self, block: Block, rows: npt.NDArray[np.int64]) -> Mapping[str, Sequence[Any]]:
        """Returns the token lists of the texts of a block before its edit; the texts are from ``rows``."""
        if block.column is not None and block.column in self.stored:
            return self.stored[block.column].take(rows)
        prompt = self.prompts.of_column(block.column)
        texts = [prompt + text for text in block.texts] if prompt else block.texts
        return token_lists(self.tokenizer, texts, self.prompts.limit(prompt, self.max_length)) if texts else {}

    def _edited(self, block: Block, original: Ids) -> dict[str, Any]:
        """Returns token lists after the edit of a block; special tokens, prompt and template are not edited."""
        assert block.edit is not None
        lists, (before, after) = original.lists, self._added(block)
        most = max(0, self.prompts.longest - before - after) if self.prompts.longest else None
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
        return max(before, self.prompts.tokens.get(self.prompts.of_column(block.column), 0)), after

    def padded(self, block: Block, ids: Ids) -> dict[str, Tensor]:
        """Returns token ids, attention mask and so on of the rows of this rank, ``(n, T)`` each."""
        length = self.length
        if length is None:
            longest = max(len(ids.lists["input_ids"][place]) for place in ids.own)
            length = max(longest, min(-(-longest // self.multiple) * self.multiple, self.longest))
        elif block.edit is not None:
            added = sum(self._added(block))
            length = added + block.edit.method.most_tokens(length - added)
            length = min(length, self.prompts.longest or length)
        tokens = pad(self.tokenizer, ids.lists, ids.own, length)
        return with_pooled(tokens, self.prompts.left_out(self.prompts.of_column(block.column)))

    def keys(self, block: Block, tokens: Mapping[str, Tensor]) -> Tensor:
        """Returns the token keys of n rows of a block, without its prompt, ``(n,)`` int64; see ``cse.identity``."""
        prompt = self.prompts.tokens.get(self.prompts.of_column(block.column), 0)
        key: Tensor = token_keys(self.tokenizer, tokens["input_ids"], tokens["attention_mask"], prompt)
        return key

    def whole_keys(self, sentences: Sequence[str]) -> Tensor:
        """Returns the token keys ``(n,)`` int64 of sentences that are cut into views: of all their ids."""
        prompt = self.prompts.anchor
        ids = token_lists(self.tokenizer, [prompt + text for text in sentences], None)["input_ids"]
        tokens = pad(self.tokenizer, {"input_ids": ids}, range(len(ids)))
        left_out = self.prompts.tokens.get(prompt, 0)
        key: Tensor = token_keys(self.tokenizer, tokens["input_ids"], tokens["attention_mask"], left_out)
        return key
