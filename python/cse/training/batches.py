"""The batches of a training run: row numbers, augmented texts and tokens.

A batch is a pure function of the configuration and the step number, so that it can be prepared in another thread and
runs are reproducible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import rng
from ..augment.base import Augmentation, Block
from ..data.corpus import Corpus
from ..losses.contrastive import partner_count
from ..models.device import fixed_length, for_transfer
from ..models.encoder import pad, tokenize
from .config import ResolvedConfig

if TYPE_CHECKING:
    from torch import Tensor

    from .token_files import StoredTokens

__all__ = ["Batch", "Batches", "Prefetcher"]


@dataclass(frozen=True)
class Batch:
    """The input of one step."""

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]
    """(B,) row numbers in the corpus."""
    blocks: dict[str, Block]
    """Texts by block name, with the views of each block."""
    partners: npt.NDArray[np.int64] | None = None
    """``(M,)`` positions of the mixing partners of mixed negatives; see ``cse.rng.partners``."""
    duplicates: npt.NDArray[np.bool_] | None = None
    """``(B, B)`` bool, True for different rows with the same sentence or the same labelled positive; None: none."""
    part: slice = field(default_factory=lambda: slice(None))
    """The rows that this rank encodes."""
    tokens: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """Token ids and attention masks of the rows ``part`` by block name, ``(B, T)`` on one rank."""

    @property
    def views(self) -> list[str]:
        """Names of all views, in the order of encoding."""
        return [view for block in self.blocks.values() for view in block.views]

    @property
    def masks(self) -> dict[str, npt.NDArray[np.bool_]]:
        """Masks ``(B,)`` by view name, True for valid rows; only for views with invalid rows."""
        return {view: block.mask for block in self.blocks.values() if block.mask is not None for view in block.views}


class Batches:
    """The batches of a training run, indexed by number. A last batch of a single row is dropped.

    A step takes ``accumulate`` batches; a rest of fewer batches at the end of the run is dropped.

    Args:
        config: The resolved configuration.
        corpus: The corpus.
        rows: ``(n,)`` row numbers to train on, ascending.
        positive: The augmentation that generates anchors and positives.
        negatives: Augmentations that generate synthetic negatives, from the original sentences.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        corpus: Corpus,
        rows: npt.NDArray[np.int64],
        positive: Augmentation,
        negatives: Sequence[Augmentation] = (),
    ) -> None:
        self.config, self.corpus, self.rows = config, corpus, rows
        self.positive, self.negatives = positive, list(negatives)
        self.size = config.batch_size
        # A batch of a single row is dropped, because it has no in-batch negatives.
        whole, rest = divmod(len(rows), self.size)
        self.per_epoch = whole + (rest > 1)
        self.steps = self.per_epoch * config.epochs // config.accumulate
        if config.max_steps is not None:
            self.steps = min(self.steps, config.max_steps)
        self._epoch = -1
        self._order = rows[:0]  # positions in rows, of the current epoch
        # The order of epoch 0 is computed while the model is loaded.
        pool = ThreadPoolExecutor(1, thread_name_prefix="cse-order")
        self._first: Future[npt.NDArray[np.int64]] | None = pool.submit(rng.permutation, rows, config.seed, 0)
        pool.shutdown(wait=False)  # the thread ends with its task

    def __len__(self) -> int:
        """Number of steps of the run."""
        return self.steps

    def of_step(self, step: int) -> range:
        """Returns the numbers of the batches of a step."""
        return range(step * self.config.accumulate, (step + 1) * self.config.accumulate)

    def __getitem__(self, number: int) -> Batch:
        """Returns a batch, without tokens."""
        seed = self.config.seed
        step = number // self.config.accumulate
        epoch, nth = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            started, self._first = self._first, None
            if epoch == 0 and started is not None:
                self._order = started.result()
            else:
                self._order = rng.permutation(self.rows, seed, epoch)
            self._epoch = epoch
        rows = self.rows[self._order[nth * self.size : (nth + 1) * self.size]]
        texts = self.corpus.take(rows)
        blocks: dict[str, Block] = {}
        for augmentation in (self.positive, *self.negatives):
            if augmentation.applies(step):
                blocks.update(augmentation(texts, rows, seed=seed, epoch=epoch))
        batch = Batch(step, epoch, rows, blocks, duplicates=self._duplicates(texts, blocks))
        if self.config.mixed_negatives and self.config.mix_variant == "paper":
            batch = replace(batch, partners=self._partners(batch))
        return batch

    def _duplicates(self, texts: list[str], blocks: dict[str, Block]) -> npt.NDArray[np.bool_] | None:
        if self.config.keep_duplicates:
            return None
        columns = [texts]
        if self.config.positive == "labelled":
            columns.append(blocks["positive"].texts)
        found = np.zeros((len(texts), len(texts)), dtype=bool)
        for column in columns:
            ids: dict[str, int] = {}
            keys = np.array([ids.setdefault(text, len(ids)) for text in column])
            found |= keys[:, None] == keys[None, :]
        np.fill_diagonal(found, False)
        return found if found.any() else None

    def _partners(self, batch: Batch) -> npt.NDArray[np.int64]:
        pairs = [("anchor", "positive"), ("synthetic", "synthetic_positive")]
        pairs = [pair for pair in pairs if pair[1] in batch.views]
        anchors, candidates = partner_count(len(pairs), self.config.objective)
        names = [second for _, second in pairs]
        if self.config.objective == "nt-xent":
            names = [name for pair in pairs for name in pair]
        masks, everything = batch.masks, np.ones(len(batch.rows), dtype=bool)
        valid = np.stack([masks.get(name, everything) for name in names]) if masks else None
        return rng.partners(batch.rows, self.config.seed, batch.epoch, anchors, candidates, valid)


class Prefetcher:
    """Context manager that prepares the next two batches in a background thread.

    One thread is sufficient, because the Rust core and the tokenizers library release the GIL.

    Args:
        batches: The batches of the run.
        tokenizer: A Hugging Face tokenizer; it is copied.
        max_length: Maximum number of tokens of a text.
        part: Returns the rows of a batch of n rows that this rank encodes. Default: all.
        stored: Stored token ids by column number; blocks of other columns, and new texts, are tokenized.
        device: Device to which the tokens will be copied.
    """

    def __init__(
        self,
        batches: Batches,
        tokenizer: Any,
        max_length: int,
        part: Callable[[int], slice] | None = None,
        stored: Mapping[int, StoredTokens] | None = None,
        device: str = "cpu",
    ) -> None:
        self.batches, self.max_length, self.stored, self.device = batches, max_length, stored or {}, device
        self.length = fixed_length(device, batches.config.compile, max_length)
        self.part = part or (lambda rows: slice(0, rows))
        # A copy, because evaluation uses the tokenizer of the model concurrently, with another maximum length.
        self.tokenizer = deepcopy(tokenizer)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="cse-prefetch")
        self._waiting: dict[int, Future[Batch]] = {}

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def prepare(self, number: int) -> Batch:
        """Returns a batch with the tokens of this rank's rows."""
        batch = self.batches[number]
        part = self.part(len(batch.rows))
        tokens = {
            name: self._tokens(block, batch.rows, part)
            for name, block in batch.blocks.items()
            if block.texts[part]  # a rank has no rows if a short last batch has fewer rows than there are ranks
        }
        return replace(batch, part=part, tokens=tokens)

    def _tokens(self, block: Block, rows: npt.NDArray[np.int64], part: slice) -> dict[str, Tensor]:
        stored = None if block.column is None else self.stored.get(block.column)
        if stored is None:
            tokens = tokenize(self.tokenizer, block.texts[part], self.max_length, fixed=self.length is not None)
        else:
            tokens = pad(self.tokenizer, stored.take(rows[part]), range(len(rows[part])), self.length)
        return {name: for_transfer(each, self.device) for name, each in tokens.items()}

    def get(self, step: int) -> list[Batch]:
        """Returns the batches of this step and prefetches the next two batches."""
        numbers = self.batches.of_step(step)
        last = len(self.batches) * len(numbers)
        for later in range(numbers.start, min(numbers.stop + 2, last)):
            if later not in self._waiting:
                self._waiting[later] = self._pool.submit(self.prepare, later)
        return [self._waiting.pop(number).result() for number in numbers]
