"""The texts of the batches of a training run: row numbers, sentences and what the methods make from them.

The texts of a batch are a pure function of the configuration, the corpus and the batch number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ... import rng
from ...augment.base import Block, Edit, Pairing, TokenEdit, View
from ...data.corpus import Corpus
from ...encoder.prompts import TrainingPrompts
from ...views import Role

ANCHOR, POSITIVE = View("anchor", "anchor"), View("positive", "positive")
PartnerViews = Callable[[Mapping[str, Role]], tuple[int, list[str]] | None]


@dataclass(frozen=True)
class Texts:
    """The texts of one batch; a step takes one or several batches (``--accumulate``)."""

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]  # (B,) row numbers in the corpus
    blocks: dict[str, Block]  # by block name: the texts to encode and their views; see cse.augment.base.Block
    sentences: list[str] = field(default_factory=list)  # the texts of these rows in the corpus
    classes: npt.NDArray[np.int64] | None = None
    """``(B,)`` numbers that are equal for rows with the same label (``Paired.labels``), and differ for all others."""

    @property
    def roles(self) -> dict[str, Role]:
        """Roles of all views by name, in the order of encoding."""
        return {view.name: view.role for block in self.blocks.values() for view in block.views}

    @property
    def views(self) -> list[str]:
        """Names of all views, in the order of encoding."""
        return list(self.roles)


class Order:
    """Which rows each batch of a run has; known before the model is loaded.

    ``rows`` are the ``(n,)`` row numbers to train on, ascending, of which ``positive`` chooses those of an epoch. A
    last batch of a single row is dropped, and so are batches at the end of the run that are fewer than ``accumulate``.
    """

    def __init__(
        self,
        rows: npt.NDArray[np.int64],
        positive: Edit | Pairing,
        *,
        batch_size: int,
        seed: int = 0,
        epochs: int | None = None,
        max_steps: int | None = None,
        accumulate: int = 1,
    ) -> None:
        self.rows, self.seed, self.size, self.accumulate = rows, seed, batch_size, accumulate
        self._rows_of_epoch = positive.rows_of_epoch
        count = len(self.rows_of_epoch(0))
        whole, rest = divmod(count, self.size)
        self.per_epoch = whole + (rest > 1 and (count == len(rows) or not whole))  # the rest of a sample is dropped
        self.steps = self.per_epoch * (epochs or 1) // accumulate
        if max_steps is not None:
            self.steps = max_steps if epochs is None else min(self.steps, max_steps)
        self._epoch = -1
        self._current = rows[:0]  # the rows of the current epoch, in its order
        # The order of epoch 0 is computed in a thread while the model is loaded.
        pool = ThreadPoolExecutor(1, thread_name_prefix="cse-order")
        self._first: Future[npt.NDArray[np.int64]] | None = pool.submit(self._ordered, 0)
        pool.shutdown(wait=False)  # the thread ends with its task

    def __len__(self) -> int:
        """Returns the number of steps."""
        return self.steps

    def of_step(self, step: int) -> range:
        """Returns the numbers of the batches of a step."""
        return range(step * self.accumulate, (step + 1) * self.accumulate)

    def batch(self, number: int) -> tuple[int, int, npt.NDArray[np.int64]]:
        """Returns the step and the epoch of a batch, and its rows ``(B,)``."""
        epoch, nth = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            started, self._first = self._first, None
            self._current = self._ordered(epoch) if epoch or started is None else started.result()
            self._epoch = epoch
        return number // self.accumulate, epoch, self._current[nth * self.size : (nth + 1) * self.size]

    def rows_of_epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the rows of an epoch, ascending."""
        return self._rows_of_epoch(self.rows, rng.Draws(self.seed, epoch))

    def used_rows(self) -> npt.NDArray[np.int64]:
        """Returns the rows that the steps use, ascending."""
        used, left = self.rows[:0], self.steps * self.accumulate
        for epoch in range(-(-left // self.per_epoch)):
            count = min(left, self.per_epoch) * self.size
            used, left = np.union1d(used, self._ordered(epoch)[:count]), left - self.per_epoch
            if len(used) == len(self.rows):
                break
        return used

    def first_rows(self, count: int) -> npt.NDArray[np.int64]:
        """Returns the first rows of the first epoch."""
        return self._ordered(0)[:count]

    def _ordered(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the rows of an epoch in random order."""
        rows = self.rows_of_epoch(epoch)
        return rows[rng.permutation(rows, self.seed, epoch)]


@dataclass
class Batches:
    """The texts of the batches of a run, indexed by number; its length is the number of steps."""

    order: Order
    corpus: Corpus
    positive: Edit | Pairing
    negatives: Sequence[Edit] = ()
    keep_duplicates: bool = False
    part: Callable[[int], slice] = lambda count: slice(0, count)
    """Returns the slice of the n rows of a batch that this rank encodes; expensive edits are applied only to these."""
    prompts: TrainingPrompts = field(default_factory=TrainingPrompts)
    """Texts that are prepended to the sentences before tokenization."""
    views: tuple[View, View] = (ANCHOR, POSITIVE)
    """The views of anchors and positives, with the encoder and the dropout of each."""
    without_dropout: bool = False
    """Whether an unchanged positive equals its anchor."""
    partner_views: PartnerViews = lambda roles: None
    """See ``cse.losses.base.BatchTerm.partner_views``."""

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> Texts:
        """Returns the texts of a batch."""
        step, epoch, rows = self.order.batch(number)
        texts = self.corpus.take(rows)
        draws = rng.Draws(self.order.seed, epoch)
        blocks, labels = self._positives(texts, rows, draws)
        for position, method in enumerate(self.negatives):
            if method.applies(step):
                name = "synthetic" if position == 0 else f"synthetic_{position + 1}"
                views: tuple[View, ...] = (View(name, "negative"),)
                if method.makes_pairs(method.options):
                    views = (View(name, "anchor"), View(f"{name}_positive", "positive"))
                blocks[name] = self._edited(method, texts, rows, draws, views)
        classes = None if labels is None else np.where(labels < 0, -1 - rows, labels)
        return Texts(step, epoch, rows, blocks, texts, classes)

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
                mask = paired.negative_masks[number] if paired.negative_masks else None
                mask = None if mask is None or mask.all() else mask
                blocks[name] = Block(negatives, (View(name, "negative"),), mask, column)
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
