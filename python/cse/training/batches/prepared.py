"""Batches as a step takes them, prepared in three steps: the texts of a batch, their tokens, and who equals whom.

An edited sentence is unchanged if, after truncation, it has the same token ids as the original. An unchanged negative
is masked (excluded from the loss), unless the run keeps duplicates. An unchanged positive is masked only without
dropout. ``cse.views.equal_texts`` decides which texts are negatives, unless the run keeps duplicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...encoder.device import for_transfer
from ...rng import partners, valid_candidates
from .texts import Batches, Texts
from .tokens import BatchTokens, Ids, StoredTokens

SENTENCES = "sentences"  # name of the keys of the sentences in Batch.keys
CLASSES = "classes"  # name of the numbers of the classes in Batch.keys
Name = tuple[str, ...]  # of a tensor of a batch: ("rows",), or a kind and the name of a block
AHEAD = 8
"""Number of batches that are prepared ahead. A batch with UNA's negatives, by default each fifth, takes several times
as long to prepare as another, because the negatives are tokenized; two batches ahead do not hide this."""


@dataclass(frozen=True)
class Packed:
    """Tensors in one piece of memory, which is copied to a device at once; each begins at a multiple of 16 bytes."""

    memory: Tensor  # (n,) uint8
    layout: tuple[tuple[Name, torch.dtype, tuple[int, ...]], ...]  # name, dtype and shape of each tensor, in order

    @classmethod
    def of(cls, tensors: Mapping[Name, Tensor]) -> Packed:
        """Returns copies of the tensors in one piece of memory."""
        layout = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items())
        packed = cls(torch.empty(sum(-(-x.nbytes // 16) * 16 for x in tensors.values()), dtype=torch.uint8), layout)
        for name, view in packed.views(packed.memory).items():
            view.copy_(tensors[name])
        return packed

    def views(self, memory: Tensor) -> dict[Name, Tensor]:
        """Returns the tensors by name, as views of a copy of the memory on any device."""
        found, start = {}, 0
        for name, dtype, shape in self.layout:
            size = math.prod(shape) * dtype.itemsize
            found[name] = memory[start : start + size].view(dtype).view(shape)
            start += -(-size // 16) * 16
        return found


@dataclass(frozen=True)
class Batch(Texts):
    """The texts of a batch with their tokens, masks and keys."""

    partners: npt.NDArray[np.int64] | None = None  # (M,) see cse.rng.partners
    unchanged: dict[str, int] = field(default_factory=dict)
    """Number of rows that an edit left unchanged, by block name; for a ``local`` block, only rows of this process."""
    part: slice = field(default_factory=lambda: slice(None))  # the rows that this rank encodes
    tokens: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """By block name: token ids, attention masks and so on of the n rows in ``part``, ``(n, T)`` each."""
    keys: dict[str, Tensor] = field(default_factory=dict)
    """By block name: token keys ``(n,)`` int64 of these rows; see ``cse.identity`` and ``cse.views.entry_keys``. If
    anchors are cut from the sentences, also the sentences'; and if rows have labels, the numbers of the
    classes. Empty if the run keeps duplicates."""
    repeats: bool = True  # whether a key may occur twice: False if this rank encodes all rows, and none does
    packed: Packed | None = None  # the tensors that a step reads, ready to be copied to the device

    @property
    def masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Masks ``(B,)`` by view name, True for valid rows."""
        return {
            view.name: block.mask
            for block in self.blocks.values()
            if block.mask is not None and not block.local
            for view in block.views
        }

    def pack(self) -> Packed:
        """Returns the tensors that a step reads: ``rows``, ``partners``, and by block the others."""
        tensors: dict[Name, Tensor] = {("rows",): torch.from_numpy(self.rows)}
        if self.partners is not None:
            tensors["partners",] = torch.from_numpy(self.partners)
        for name, block in self.blocks.items():
            if block.mask is not None:
                tensors["mask", name] = torch.from_numpy(block.mask)
        tensors |= {("keys", name): key for name, key in self.keys.items()}
        tensors |= {("tokens", name, key): x for name, block in self.tokens.items() for key, x in block.items()}
        return Packed.of(tensors)


class Prefetcher:
    """Context manager that prepares the next batches in a background thread; arguments: see ``BatchTokens``."""

    def __init__(
        self,
        batches: Batches,
        tokenizer: Any,
        max_length: int,
        stored: Mapping[int, StoredTokens] | None = None,
        device: str = "cpu",
        compiled: bool = False,
    ) -> None:
        self.batches, self.device = batches, device
        self.tokens = BatchTokens(tokenizer, max_length, batches.prompts, stored or {}, device, compiled)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cse-prefetch")
        self._waiting: dict[int, Future[Batch]] = {}

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def prepare(self, number: int) -> Batch:
        """Returns a batch with the tokens of this rank's rows."""
        texts = self.batches[number]
        part = self.batches.part(len(texts.rows))
        original, ids = self.tokens.of(texts, part)
        # A rank has no rows if the last batch of an epoch has fewer rows than there are ranks.
        blocks = texts.blocks.items() if len(texts.rows[part]) else ()
        tokens = {name: self.tokens.padded(block, ids[name]) for name, block in blocks}
        batch = Batch(**vars(texts), part=part, tokens=tokens)
        if original is not None:
            batch = self._without_unchanged(batch, original, ids)
        batch = replace(batch, partners=self._partners(batch), **self._keys(batch))
        packed = batch.pack()
        return replace(batch, packed=replace(packed, memory=for_transfer(packed.memory, self.device)))

    def _without_unchanged(self, batch: Batch, original: Ids, ids: Mapping[str, Ids]) -> Batch:
        """Returns the batch with the number of unchanged rows by block; see the module on which of them are masked."""
        before, keeps = original.lists["input_ids"], self.batches.keep_duplicates
        blocks, unchanged = dict(batch.blocks), {}
        for name, block in batch.blocks.items():
            if not block.edited:
                continue
            changed = changed_rows(before[batch.part] if block.local else before, ids[name].lists.get("input_ids", []))
            unchanged[name] = int((~changed).sum())
            role = block.views[0].role
            masked = self.batches.without_dropout if role == "positive" else role != "other" and not keeps
            if masked and (block.local or not changed.all()):
                blocks[name] = replace(block, mask=changed)
        return replace(batch, blocks=blocks, unchanged=unchanged)

    def _partners(self, batch: Batch) -> npt.NDArray[np.int64] | None:
        if (drawn := self.batches.partner_views(batch.roles)) is None:
            return None
        anchors, names = drawn
        valid = valid_candidates(names, batch.masks, len(batch.rows))
        return partners(batch.rows, self.batches.order.seed, batch.epoch, anchors, len(names), valid)

    def _keys(self, batch: Batch) -> dict[str, Any]:
        """Returns ``keys`` and ``repeats`` of a batch."""
        keys: dict[str, Tensor] = {}
        rows = batch.rows[batch.part]
        if not self.batches.keep_duplicates:
            keys = {name: torch.zeros(0, dtype=torch.int64) for name in batch.blocks}  # if this rank has no rows
            keys |= {name: self.tokens.keys(batch.blocks[name], block) for name, block in batch.tokens.items()}
            if batch.blocks["anchor"].column is None:  # the anchors are parts of the sentences
                texts = batch.sentences[batch.part]
                keys[SENTENCES] = self.tokens.whole_keys(texts) if texts else torch.zeros(0, dtype=torch.int64)
            if batch.classes is not None:
                keys[CLASSES] = torch.from_numpy(batch.classes[batch.part].copy())
        every = torch.cat([*keys.values(), torch.zeros(0, dtype=torch.int64)])
        repeats = len(rows) < len(batch.rows) or CLASSES in keys or len(torch.unique(every)) < len(every)
        return {"keys": keys, "repeats": repeats}

    def get(self, step: int) -> list[Batch]:
        """Returns the batches of this step, and starts to prepare those that follow them."""
        numbers = self.batches.order.of_step(step)
        last = len(self.batches) * len(numbers)
        for later in range(numbers.start, min(numbers.stop + AHEAD, last)):
            if later not in self._waiting:
                self._waiting[later] = self._pool.submit(self.prepare, later)
        return [self._waiting.pop(number).result() for number in numbers]


def changed_rows(before: Iterable[Any], after: Iterable[Any]) -> npt.NDArray[np.bool_]:
    """Returns ``(n,)`` bool, True where an edited sentence and its original have different token ids."""
    return np.array([list(new) != list(old) for new, old in zip(after, before, strict=True)], dtype=bool)
