"""Token ids of a corpus in memory-mapped files of the cache.

Sentences that no augmentation changes are tokenized only once, instead of in every epoch and run. ``ids.u16`` or
``ids.u32`` holds the ids of all rows in one sequence, each row truncated at the maximum length. ``ends.u64`` holds, for
each row, the position after its last id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...background import ProgressCallback
from ...data.cache import Entry, cache_folder, ends_fit, find_entry, open_entry
from ...data.corpus import Corpus
from ...io import naming
from ...models.running.encoder import token_lists
from .batches import Batches

# Number of rows that are tokenized at a time.
BLOCK = 16384


class StoredTokens:
    """The token ids of all rows of a corpus, mapped into memory.

    Args:
        entry: The entry of the cache.
        with_types: Whether the model takes token type ids, which are 0 for single texts.
    """

    def __init__(self, entry: Entry, with_types: bool) -> None:
        self.with_types = with_types
        ids = entry.folder / f"ids.{entry.meta['dtype']}"
        self._ends = np.memmap(entry.folder / "ends.u64", dtype="<u8", mode="r")
        self._ids = np.memmap(ids, dtype=_dtype(entry.meta["dtype"]), mode="r")

    def take(self, rows: npt.NDArray[np.int64]) -> dict[str, list[npt.NDArray[np.integer]]]:
        """Returns the token ids of some rows, in the form of ``cse.models.running.encoder.token_lists``."""
        ids = []
        for row in rows.tolist():
            start = int(self._ends[row - 1]) if row else 0
            ids.append(np.asarray(self._ids[start : int(self._ends[row])]))
        return {"input_ids": ids, **({"token_type_ids": [each * 0 for each in ids]} if self.with_types else {})}


def open_tokens(
    batches: Batches,
    columns: Sequence[Corpus],
    tokenizer: Any,
    max_length: int,
    reading: Mapping[str, Any],
    progress: ProgressCallback,
) -> dict[int, StoredTokens]:
    """Returns, by column number, the stored token ids of the columns whose rows are encoded unchanged.

    Token ids are stored only for corpora in the cache, and only by runs that read the whole corpus. A shorter run uses
    stored ids if there are any, and otherwise tokenizes only the sentences of its batches. Nothing is stored for a
    tokenizer whose token type ids are not all 0 for single texts.

    Args:
        batches: The batches of the run.
        columns: The corpora by column number; see ``cse.augment.base.Block.column``.
        tokenizer: A Hugging Face tokenizer; it is copied.
        max_length: Maximum number of tokens of a text, not counting a prompt.
        reading: Options with which the files were read; see ``cse.data.reading.ReadOptions``.
        progress: Called with the same arguments as ``Callback.on_progress``.

    Raises:
        OSError: If the cache cannot be written.
    """
    whole = len(batches) * batches.accumulate >= batches.per_epoch
    used = {block.column for block in batches[0].blocks.values() if block.column is not None}
    found = {}
    for number in sorted(used):
        corpus = columns[number]
        if corpus.folder is not None and all(os.path.isfile(file.path) for file in corpus.files):  # not a stream
            prompt = batches.prompts.of_column(number)
            limit = batches.prompts.limit(prompt, max_length)
            entry = _open(corpus, deepcopy(tokenizer), limit, reading, whole, progress, prompt)
            if entry is not None:
                found[number] = StoredTokens(entry, "token_type_ids" in tokenizer.model_input_names)
    return found


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
    # A tokenizer stores the truncation and padding settings of its last call; they must not become part of the key.
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    key = {
        "version": 1,
        "files": [[file.xxh3, file.rows, file.column] for file in corpus.files],
        "encoding_errors": reading["encoding_errors"],
        "max_line_bytes": reading["max_line_bytes"],
        "tokenizer": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "max_length": max_length,
        **({"prompt": prompt} if prompt else {}),
    }
    kept = cache_folder(reading["cache"])
    if not may_write:
        return find_entry(kept, "tokens", key, _fits)

    def write(folder: Path) -> dict[str, Any]:
        kind = "u16" if len(tokenizer) <= 2**16 else "u32"
        with naming(folder):
            _write(folder, corpus, tokenizer, max_length, kind, progress, prompt)
        return {"rows": len(corpus), "dtype": kind, "paths": [file.path for file in corpus.files]}

    return open_entry(kept, "tokens", key, write, _fits)[0]


def _fits(entry: Entry) -> bool:
    ids = np.memmap(entry.folder / f"ids.{entry.meta['dtype']}", dtype=_dtype(entry.meta["dtype"]), mode="r")
    return ends_fit(np.memmap(entry.folder / "ends.u64", dtype="<u8", mode="r"), entry.meta["rows"], len(ids))


def _write(
    folder: Path,
    corpus: Corpus,
    tokenizer: Any,
    max_length: int,
    kind: str,
    progress: ProgressCallback,
    prompt: str,
) -> None:
    total, rows = 0, len(corpus)
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(max_length, direction=tokenizer.truncation_side)
    with open(folder / f"ids.{kind}", "wb") as ids, open(folder / "ends.u64", "wb") as ends:
        for start in range(0, rows, BLOCK):
            texts = corpus.take(range(start, min(start + BLOCK, rows)))
            texts = [prompt + text for text in texts] if prompt else texts
            # This call uses all cores. The tokenizer of transformers would also create lists that are not needed.
            lists = [encoding.ids for encoding in backend.encode_batch_fast(texts)]
            lengths = np.fromiter(map(len, lists), dtype="<u8", count=len(lists))
            count = int(lengths.sum())
            ids.write(np.fromiter(chain.from_iterable(lists), dtype=_dtype(kind), count=count).tobytes())
            ends.write((np.cumsum(lengths) + np.uint64(total)).astype("<u8").tobytes())
            total += count
            progress("token ids", start + len(texts), rows, "sentences")


def _dtype(kind: str) -> str:
    return {"u16": "<u2", "u32": "<u4"}[kind]
