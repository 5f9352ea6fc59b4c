"""The batches of a training run: row numbers, augmented texts and tokens.

A batch is a pure function of the configuration, the corpus and the batch number, and can be prepared in another thread.
An edited sentence is unchanged if, after truncation, it has the same token ids as the original. An unchanged negative
is masked (excluded from the loss), unless the run keeps duplicates. An unchanged positive is masked only without
dropout. Unless the run keeps duplicates, texts with the same token ids are not negatives of each other.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import rng
from ...augment.base import Block, Edit, Pairing, TokenEdit, View
from ...data.corpus import Corpus
from ...encoder.prompts import TrainingPrompts
from ...rng import partners, valid_candidates
from ...views import Role

ANCHOR, POSITIVE = View("anchor", "anchor"), View("positive", "positive")
# Function that returns the token ids of a block whose texts belong to the given rows of the corpus.
TokenIds = Callable[[Block, npt.NDArray[np.int64]], Sequence[Any]]
SENTENCES = "sentences"  # name of the hashes of the sentences in Batch.keys
CLASSES = "classes"  # name of the numbers of the classes in Batch.keys
PartnerViews = Callable[[Mapping[str, Role]], tuple[int, list[str]] | None]
Name = tuple[str, ...]  # of a tensor of a batch: ("rows",), or a kind and the name of a block


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
class Batch:
    """One batch; a step takes one or several batches (``--accumulate``)."""

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]  # (B,) row numbers in the corpus
    blocks: dict[str, Block]  # by block name: the texts to encode and their views; see cse.augment.base.Block
    partners: npt.NDArray[np.int64] | None = None  # (M,) see cse.rng.partners
    sentences: npt.NDArray[np.int64] | None = None
    """``(B,)`` hashes of the sentences, if anchors are made from them and the run does not keep duplicates."""
    classes: npt.NDArray[np.int64] | None = None
    """``(B,)`` numbers that are equal for rows with the same label (``Paired.labels``), and differ for all others."""
    unchanged: dict[str, int] = field(default_factory=dict)
    """Number of rows that an edit left unchanged, by block name; for a ``local`` block, only rows of this process."""
    part: slice = field(default_factory=lambda: slice(None))  # the rows that this rank encodes
    tokens: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """By block name: token ids, attention masks and so on of the n rows in ``part``, ``(n, T)`` each."""
    keys: dict[str, Tensor] = field(default_factory=dict)
    """By block name: hashes ``(n,)`` int64 of the token ids of these rows; see ``cse.views.entry_keys``. Empty if the
    run keeps duplicates."""
    repeats: bool = True  # whether a hash in keys may occur twice: False if this rank encodes all rows, and none does
    packed: Packed | None = None  # the tensors that a step reads, ready to be copied to the device

    @property
    def roles(self) -> dict[str, Role]:
        """Roles of all views by name, in the order of encoding."""
        return {view.name: view.role for block in self.blocks.values() for view in block.views}

    @property
    def views(self) -> list[str]:
        """Names of all views, in the order of encoding."""
        return list(self.roles)

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


class Batches:
    """The batches of a training run, indexed by number.

    ``rows`` are the ``(n,)`` row numbers to train on, ascending. A last batch of a single row is dropped, and so are
    batches at the end of the run that are fewer than ``accumulate``. ``part(n)`` returns the slice of the n rows of a
    batch that this rank encodes; expensive edits are applied only to these rows.
    """

    def __init__(
        self,
        corpus: Corpus,
        rows: npt.NDArray[np.int64],
        positive: Edit | Pairing,
        negatives: Sequence[Edit] = (),
        *,
        batch_size: int,
        seed: int = 0,
        epochs: int | None = None,
        max_steps: int | None = None,
        accumulate: int = 1,
        keep_duplicates: bool = False,
        part: Callable[[int], slice] | None = None,
    ) -> None:
        self.corpus, self.rows, self.seed = corpus, rows, seed
        self.positive, self.negatives = positive, list(negatives)
        self.part = part or (lambda count: slice(0, count))
        self.partner_views: PartnerViews = lambda roles: None  # see BatchTerm.partner_views
        self.views = (ANCHOR, POSITIVE)  # the views of anchors and positives, with the encoder and the dropout of each
        self.without_dropout = False  # whether an unchanged positive equals its anchor
        self.prompts = TrainingPrompts()  # texts that are prepended to the sentences before tokenization
        self.size, self.accumulate, self.keep_duplicates = batch_size, accumulate, keep_duplicates
        count = len(self._rows_of(0))
        whole, rest = divmod(count, self.size)
        self.per_epoch = whole + (rest > 1 and (count == len(rows) or not whole))  # the rest of a sample is dropped
        self.steps = self.per_epoch * (epochs or 1) // accumulate
        if max_steps is not None:
            self.steps = max_steps if epochs is None else min(self.steps, max_steps)
        self._epoch = -1
        self._order = rows[:0]  # the rows of the current epoch, in its order
        # The order of epoch 0 is computed in a thread while the model is loaded.
        pool = ThreadPoolExecutor(1, thread_name_prefix="cse-order")
        self._first: Future[npt.NDArray[np.int64]] | None = pool.submit(self._ordered, 0)
        pool.shutdown(wait=False)  # the thread ends with its task

    def __len__(self) -> int:
        return self.steps

    def of_step(self, step: int) -> range:
        """Returns the numbers of the batches of a step."""
        return range(step * self.accumulate, (step + 1) * self.accumulate)

    def __getitem__(self, number: int) -> Batch:
        """Returns a batch without tokens. An edited sentence counts as unchanged if its text equals the original."""

        def texts(block: Block, rows: npt.NDArray[np.int64]) -> list[str]:
            edit = block.edit
            return block.texts if edit is None else edit.method(block.texts, edit.rows, edit.draws)

        return self.make(number, texts)

    def make(self, number: int, ids: TokenIds) -> Batch:
        """Returns a batch without tokens."""
        seed, step = self.seed, number // self.accumulate
        epoch, nth = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            started, self._first = self._first, None
            self._order = self._ordered(epoch) if epoch or started is None else started.result()
            self._epoch = epoch
        rows = self._order[nth * self.size : (nth + 1) * self.size]
        texts = self.corpus.take(rows)
        draws = rng.Draws(seed, epoch)
        blocks, labels = self._positives(texts, rows, draws)
        for position, method in enumerate(self.negatives):
            if method.applies(step):
                name = "synthetic" if position == 0 else f"synthetic_{position + 1}"
                views: tuple[View, ...] = (View(name, "negative"),)
                if method.makes_pairs(method.options):
                    views = (View(name, "anchor"), View(f"{name}_positive", "positive"))
                blocks[name] = self._edited(method, texts, rows, draws, views)
        sentences = None
        if blocks["anchor"].column is None and not self.keep_duplicates:
            digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
            sentences = np.frombuffer(digests, dtype=np.int64)
        classes = None if labels is None else np.where(labels < 0, -1 - rows, labels)
        batch = Batch(step, epoch, rows, blocks, sentences=sentences, classes=classes)
        if any(block.edited for block in blocks.values()):
            batch = self._compared(batch, Block(texts, (ANCHOR,), column=0), ids)
        if (drawn := self.partner_views(batch.roles)) is None:
            return batch
        anchors, names = drawn
        valid = valid_candidates(names, batch.masks, len(rows))
        return replace(batch, partners=partners(rows, seed, epoch, anchors, len(names), valid))

    def _rows_of(self, epoch: int) -> npt.NDArray[np.int64]:
        return self.positive.rows_of_epoch(self.rows, rng.Draws(self.seed, epoch))

    def _ordered(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the rows of an epoch in random order."""
        rows = self._rows_of(epoch)
        return rows[rng.permutation(rows, self.seed, epoch)]

    def _positives(
        self, texts: list[str], rows: npt.NDArray[np.int64], draws: rng.Draws
    ) -> tuple[dict[str, Block], npt.NDArray[np.int64] | None]:
        """Returns the blocks of anchors and positives, and the classes of the rows (``Paired.labels``)."""
        anchor, positive = self.views
        if isinstance(self.positive, Edit):
            if not self.positive.is_positive(self.positive.options):
                blocks = {"anchor": Block(texts, (anchor, positive), column=0)}
                for number, edit in enumerate([self.positive, *self.positive.further()], 1):
                    name = "edited" if number == 1 else f"edited_{number}"
                    other = replace(positive, name=name, role="other")
                    blocks[name] = self._edited(edit, texts, rows, draws, (other,))
                return blocks, None
            edited = self._edited(self.positive, texts, rows, draws, (positive,))
            return {"anchor": Block(texts, (anchor,), column=0), "positive": edited}, None
        paired = self.positive(texts, rows, draws)
        columns = paired.columns
        if paired.positives is None:
            both = Block(paired.anchors, (anchor, positive), paired.mask, columns[0], shared=paired.shared)
            return {"anchor": both}, paired.labels
        blocks = {
            "anchor": Block(paired.anchors, (anchor,), column=columns[0]),
            "positive": Block(paired.positives, (positive,), paired.mask, columns[1]),
        }
        if paired.negatives is not None:
            for number, negatives in enumerate([paired.negatives, *paired.more_negatives]):
                name = "hard_negative" if number == 0 else f"hard_negative_{number + 1}"
                column = None if columns[2] is None else columns[2] + number
                blocks[name] = Block(negatives, (View(name, "negative"),), column=column)
        return blocks, paired.labels

    def _edited(
        self, method: Edit, texts: list[str], rows: npt.NDArray[np.int64], draws: rng.Draws, views: tuple[View, ...]
    ) -> Block:
        if method.edits_tokens:
            return Block(texts, views, column=0, edited=True, edit=TokenEdit(method, rows, draws))
        if not method.expensive:
            return Block(method(texts, rows, draws), views, edited=True)
        part = self.part(len(rows))
        made = method(texts[part], rows[part], draws) if len(rows[part]) else []
        return Block(made, views, edited=True, local=True)

    def _compared(self, batch: Batch, original: Block, ids: TokenIds) -> Batch:
        """Returns the batch with the number of unchanged rows by block; see the module on which of them are masked."""
        before = ids(original, batch.rows)
        blocks, unchanged = dict(batch.blocks), {}
        for name, block in batch.blocks.items():
            if not block.edited:
                continue
            part = self.part(len(batch.rows)) if block.local else slice(None)
            changed = changed_rows(before[part], ids(block, batch.rows[part]))
            unchanged[name] = int((~changed).sum())
            role = block.views[0].role
            masked = self.without_dropout if role == "positive" else role != "other" and not self.keep_duplicates
            if masked and (block.local or not changed.all()):
                blocks[name] = replace(block, mask=changed)
        return replace(batch, blocks=blocks, unchanged=unchanged)


def changed_rows(before: Iterable[Any], after: Iterable[Any]) -> npt.NDArray[np.bool_]:
    """Returns ``(n,)`` bool, True where an edited sentence and its original have different token ids."""
    return np.array([list(new) != list(old) for new, old in zip(after, before, strict=True)], dtype=bool)
