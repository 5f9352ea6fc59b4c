"""The batches of a training run: row numbers, augmented texts and tokens.

A batch is a pure function of the configuration, the corpus and the batch number. It can therefore be prepared in
another thread, and runs are reproducible.
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
from ..augment.base import Block, Edit, Pairing, TokenEdit, View
from ..data.corpus import Corpus
from ..mixing_partners import partners, valid_candidates
from ..models.device import fixed_length, for_transfer
from ..models.encoder import pad, token_lists, tokenize
from ..models.prompts import TrainingPrompts
from ..models.tokens import with_pooled
from .unchanged_augmentations import changed_rows, is_masked

if TYPE_CHECKING:
    from torch import Tensor

    from ..views import Role
    from .token_files import StoredTokens

__all__ = ["Batch", "Batches", "Prefetcher"]

ANCHOR, POSITIVE = View("anchor", "anchor"), View("positive", "positive")
# Function that returns the token ids of a block whose texts belong to the given rows of the corpus.
TokenIds = Callable[[Block, npt.NDArray[np.int64]], Sequence[Any]]
PartnerViews = Callable[[Mapping[str, "Role"]], tuple[int, list[str]] | None]


@dataclass(frozen=True)
class Batch:
    """One batch; a step takes one or several batches (``--accumulate``)."""

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]
    """``(B,)`` row numbers in the corpus."""
    blocks: dict[str, Block]
    """By block name: the texts to encode and their views; see ``cse.augment.base.Block``."""
    partners: npt.NDArray[np.int64] | None = None
    """``(M,)`` positions of the candidates with which positives are mixed (MixCSE); see ``cse.mixing_partners``."""
    duplicates: npt.NDArray[np.bool_] | None = None
    """``(B, B)`` bool, True for different rows with the same sentence or labelled positive. None: there are none, or
    the run keeps duplicates."""
    unchanged: dict[str, int] = field(default_factory=dict)
    """Number of rows that an edit left unchanged, by block name; for a ``local`` block, only rows of this process."""
    part: slice = field(default_factory=lambda: slice(None))
    """The rows that this rank encodes."""
    tokens: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """By block name: token ids, attention masks and so on of the n rows in ``part``, ``(n, T)`` each."""

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
        """Masks ``(B,)`` by view name, True for valid rows.

        Views of ``local`` blocks, and views without invalid rows, have no mask.
        """
        return {
            view.name: block.mask
            for block in self.blocks.values()
            if block.mask is not None and not block.local
            for view in block.views
        }


class Batches:
    """The batches of a training run, indexed by number.

    If the last batch of an epoch has a single row, it is dropped. A step takes ``accumulate`` batches; if fewer are
    left at the end of the run, they are dropped.

    Args:
        corpus: The corpus.
        rows: ``(n,)`` row numbers to train on, ascending.
        positive: The augmentation that makes positives.
        negatives: Edits that make synthetic negatives from the original sentences.
        batch_size: Rows per batch.
        seed: Seed of the row order, the augmentations and the mixing partners.
        epochs: Passes over the rows. Default: 1, or as many as ``max_steps`` requires.
        max_steps: Maximum number of steps, or the exact number if ``epochs`` is None.
        accumulate: Batches per step.
        keep_duplicates: Whether identical sentences and unchanged synthetic negatives are used as negatives.
        part: ``part(n)`` returns the slice of the n rows of a batch that this rank encodes; expensive edits are applied
            only to these rows.
        partner_views: Returns the views from which the candidates for mixing (MixCSE) are drawn; see
            ``cse.losses.base.BatchTerm.partner_views``.
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
        partner_views: PartnerViews | None = None,
    ) -> None:
        self.corpus, self.rows, self.seed = corpus, rows, seed
        self.positive, self.negatives = positive, list(negatives)
        self.part, self.partner_views = part or (lambda count: slice(0, count)), partner_views
        self.views = (ANCHOR, POSITIVE)
        """The views of anchors and positives, with the encoder and the dropout of each."""
        self.without_dropout = False
        """Whether one encoder encodes both views without dropout, so that an unchanged positive equals its anchor."""
        self.prompts = TrainingPrompts()
        """Texts that are prepended to the sentences before tokenization."""
        self.size, self.accumulate, self.keep_duplicates = batch_size, accumulate, keep_duplicates
        # A batch of a single row is dropped, because it has no in-batch negatives.
        whole, rest = divmod(len(rows), self.size)
        self.per_epoch = whole + (rest > 1)
        self.steps = self.per_epoch * (epochs or 1) // accumulate
        if max_steps is not None:
            self.steps = max_steps if epochs is None else min(self.steps, max_steps)
        self._epoch = -1
        self._order = rows[:0]  # the order of the current epoch, as positions in rows
        # The order of epoch 0 is computed in a thread while the model is loaded.
        pool = ThreadPoolExecutor(1, thread_name_prefix="cse-order")
        self._first: Future[npt.NDArray[np.int64]] | None = pool.submit(rng.permutation, rows, seed, 0)
        pool.shutdown(wait=False)  # the thread ends with its task

    def __len__(self) -> int:
        """Number of steps of the run."""
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
        """Returns a batch without tokens.

        An edited sentence counts as unchanged if ``ids`` returns the same token ids for it as for the original.
        """
        seed = self.seed
        step = number // self.accumulate
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
        draws = rng.Draws(seed, epoch)
        blocks = self._positives(texts, rows, draws)
        for position, method in enumerate(self.negatives):
            if method.applies(step):
                name = "synthetic" if position == 0 else f"synthetic_{position + 1}"
                views: tuple[View, ...] = (View(name, "negative"),)
                if method.makes_pairs(method.options):
                    views = (View(name, "anchor"), View(f"{name}_positive", "positive"))
                blocks[name] = self._edited(method, texts, rows, draws, views)
        batch = Batch(step, epoch, rows, blocks, duplicates=self._duplicates(texts, blocks))
        if any(block.edited for block in blocks.values()):
            batch = self._compared(batch, Block(texts, (ANCHOR,), column=0), ids)
        return replace(batch, partners=self._partners(batch))

    def _positives(self, texts: list[str], rows: npt.NDArray[np.int64], draws: rng.Draws) -> dict[str, Block]:
        anchor, positive = self.views
        if isinstance(self.positive, Edit):
            if not self.positive.is_positive(self.positive.options):
                other = replace(positive, name="edited", role="other")
                edited = self._edited(self.positive, texts, rows, draws, (other,))
                return {"anchor": Block(texts, (anchor, positive), column=0), "edited": edited}
            edited = self._edited(self.positive, texts, rows, draws, (positive,))
            return {"anchor": Block(texts, (anchor,), column=0), "positive": edited}
        paired = self.positive(texts, rows, draws)
        columns = paired.columns
        if paired.positives is None:
            return {"anchor": Block(paired.anchors, (anchor, positive), paired.mask, columns[0], shared=paired.shared)}
        blocks = {
            "anchor": Block(paired.anchors, (anchor,), column=columns[0]),
            "positive": Block(paired.positives, (positive,), paired.mask, columns[1]),
        }
        if paired.negatives is not None:
            blocks["hard_negative"] = Block(paired.negatives, (View("hard_negative", "negative"),), column=columns[2])
        return blocks

    def _edited(
        self,
        method: Edit,
        texts: list[str],
        rows: npt.NDArray[np.int64],
        draws: rng.Draws,
        views: tuple[View, ...],
    ) -> Block:
        if method.edits_tokens:
            return Block(texts, views, column=0, edited=True, edit=TokenEdit(method, rows, draws))
        if not method.expensive:
            return Block(method(texts, rows, draws), views, edited=True)
        part = self.part(len(rows))
        made = method(texts[part], rows[part], draws) if len(rows[part]) else []
        return Block(made, views, edited=True, local=True)

    def _compared(self, batch: Batch, original: Block, ids: TokenIds) -> Batch:
        """Returns the batch with the number of unchanged rows by block name.

        Unchanged rows of the blocks for which ``is_masked`` returns True are masked.
        """
        before = ids(original, batch.rows)
        blocks, unchanged = dict(batch.blocks), {}
        for name, block in batch.blocks.items():
            if not block.edited:
                continue
            part = self.part(len(batch.rows)) if block.local else slice(None)
            changed = changed_rows(before[part], ids(block, batch.rows[part]))
            unchanged[name] = int((~changed).sum())
            masked = is_masked(
                block.views[0].role, without_dropout=self.without_dropout, keep_duplicates=self.keep_duplicates
            )
            if masked and (block.local or not changed.all()):
                blocks[name] = replace(block, mask=changed)
        return replace(batch, blocks=blocks, unchanged=unchanged)

    def _duplicates(self, texts: list[str], blocks: dict[str, Block]) -> npt.NDArray[np.bool_] | None:
        if self.keep_duplicates:
            return None
        columns = [texts]
        if isinstance(self.positive, Pairing) and self.positive.labelled:
            columns.append(blocks["positive"].texts)
        found = np.zeros((len(texts), len(texts)), dtype=bool)
        for column in columns:
            ids: dict[str, int] = {}
            keys = np.array([ids.setdefault(text, len(ids)) for text in column])
            found |= keys[:, None] == keys[None, :]
        np.fill_diagonal(found, False)
        return found if found.any() else None

    def _partners(self, batch: Batch) -> npt.NDArray[np.int64] | None:
        drawn = self.partner_views(batch.roles) if self.partner_views else None
        if drawn is None:
            return None
        anchors, names = drawn
        valid = valid_candidates(names, batch.masks, len(batch.rows))
        return partners(batch.rows, self.seed, batch.epoch, anchors, len(names), valid, excluded=batch.duplicates)


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
