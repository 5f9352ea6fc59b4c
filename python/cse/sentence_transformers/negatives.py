"""Synthetic hard negatives (UNA) in a ``datasets.Dataset``: drawn once as columns, or redrawn in every epoch.

The trainer of sentence-transformers passes token ids to a loss, not texts or row numbers. Equal texts are therefore
recognised by equal token ids. ``NegativesCollator`` adds row numbers and the epoch to the inputs of the first column.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np
import numpy.typing as npt
import torch
from datasets import Dataset
from datasets.fingerprint import generate_random_fingerprint
from sentence_transformers.base.data_collator import DEFAULT_LABEL_COLUMNS
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor
from transformers import TrainerCallback

from ..errors import InputError, check_integer
from ..identity import token_keys
from ..tfidf.index import TfidfIndex
from ..tfidf.options import DrawOptions

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

ROW, EPOCH = "cse_row", "cse_epoch"
"""Keys in the inputs of the first column. Their values, ``(B,)`` int64, are the row numbers and the repeated epoch."""


class Facts(NamedTuple):
    """What a loss needs besides the embeddings of a batch of B rows, ``(B,)`` int64 each; None if it is not known."""

    rows: Tensor | None = None
    """Keys of random numbers: the row numbers, or else hashes of the anchors' token ids."""
    epoch: Tensor | None = None
    """The epoch, from 0."""
    keys: tuple[Tensor, ...] | None = None
    """For each column, a hash of the token ids without the prompt; None if a column has no token ids."""


def facts_of(features: Sequence[Mapping[str, Any]], tokenizer: Any) -> Facts:
    """Returns the facts of a batch; ``features`` are the inputs of the model, by column."""
    computed = [column_keys(column, tokenizer) for column in features]
    known = tuple(key for key in computed if key is not None)
    keys = known if len(known) == len(computed) else None
    rows = features[0].get(ROW, None if keys is None else keys[0])
    return Facts(rows, features[0].get(EPOCH), keys)


def column_keys(features: Mapping[str, Any], tokenizer: Any) -> Tensor | None:
    """Returns ``token_keys`` of the inputs of a column; None for inputs that are not padded token ids."""
    ids, mask = features.get("input_ids"), features.get("attention_mask")
    if not isinstance(ids, Tensor) or not isinstance(mask, Tensor) or ids.ndim != 2 or ids.shape != mask.shape:
        return None
    prompt = features.get("prompt_length", 0)
    prompt = int(prompt.flatten()[0]) if isinstance(prompt, Tensor) else prompt
    key: Tensor = token_keys(tokenizer, ids, mask, prompt)
    return key


Index = TfidfIndex | str | PathLike[str]


def add_negatives(
    dataset: Dataset,
    index: Index,
    column: str,
    copies: int = 1,
    *,
    name: str = "negative",
    row_column: str | None = None,
    batch_size: int = 1000,
    **drawing: Unpack[DrawOptions],
) -> tuple[Dataset, npt.NDArray[np.bool_]]:
    """Adds columns with synthetic hard negatives (UNA) for the texts of a column.

    A negative is a function of the text, its row number, the copy number, and ``drawing``. It does not depend on
    ``batch_size`` or, with ``row_column``, on the order of the rows.

    Args:
        dataset: A ``datasets.Dataset``.
        index: A ``TfidfIndex``, or its folder.
        column: Column of the texts, for example ``anchor``.
        copies: Number of negatives of each text.
        name: Name of the new column; with several copies, ``_1``, ``_2``, ... is appended.
        row_column: Column of row numbers, from ``number_rows``. None: positions in the dataset are the row numbers.
        batch_size: Number of rows processed at a time.
        **drawing: See ``DrawOptions``, except ``copy``.

    Returns:
        The dataset with the new columns, and ``(n, copies)`` bool, True where a negative equals its text, for
        example because none of the words can be replaced. ``InfoNCELoss`` ignores such negatives, unless it keeps
        duplicates; for other losses, leave out their rows::

            dataset = dataset.select(np.flatnonzero(~unchanged.any(axis=1)))

    Raises:
        InputError: If ``column`` does not hold texts, a new column exists already, or an option is invalid.

    Warns:
        UserWarning: If the dataset has no column of positives, which must stand before the negatives in training.
    """
    drawn = _Drawn(index, column, copies, name, drawing)
    for wanted in filter(None, (column, row_column)):
        if wanted not in dataset.column_names:
            raise InputError(f"column {wanted}: the dataset has no such column, only {', '.join(dataset.column_names)}")
    drawn.check(dataset.column_names)
    if _lacks_positives(dataset.column_names, row_column):
        warnings.warn(f"dataset: {NO_POSITIVES}", stacklevel=2)
    unchanged = np.zeros((len(dataset), copies), dtype=bool)

    def added(batch: dict[str, list[Any]], places: list[int]) -> dict[str, list[str]]:
        rows = places if row_column is None else batch[row_column]
        columns = drawn(batch[column], rows)
        for number, texts in enumerate(columns.values()):
            unchanged[places, number] = [new == old for new, old in zip(texts, batch[column], strict=True)]
        return columns

    result = dataset.map(
        added,
        batched=True,
        with_indices=True,
        batch_size=batch_size,
        # The cache of datasets is not used, because its key would need a hash of the whole index.
        new_fingerprint=generate_random_fingerprint(),
        load_from_cache_file=False,
        desc="Drawing negatives",
    )
    return result, unchanged


def number_rows(dataset: Dataset, name: str = "row") -> Dataset:
    """Returns the dataset with a column of row numbers, from 0; number rows before they are shuffled or selected."""
    return dataset.add_column(name, np.arange(len(dataset), dtype=np.int64))


class NegativesCollator(SentenceTransformerDataCollator):
    """Makes the batches of the trainer, with synthetic hard negatives that are redrawn in every epoch.

    The dataset needs a column of row numbers (``number_rows``), which is removed before the texts are tokenized. The
    negatives are the same as from ``add_negatives(..., row_column=row_column, epoch=epoch)``, and are the last columns.
    ``InfoNCELoss`` gets the row numbers and the epoch for its mixed negatives. Batches without the column of row
    numbers, such as evaluation batches, get no negatives.

    The trainer also needs the callback of the collator. The callback sets the epoch of the collator. If prompts or a
    router mapping are not given here, it also copies them from the training arguments::

        collator = NegativesCollator(model.preprocess, index, "anchor")
        SentenceTransformerTrainer(..., data_collator=collator, callbacks=[collator.callback])

    The epoch also reaches worker processes (``dataloader_num_workers``), including persistent ones.

    Args:
        preprocess_fn: ``model.preprocess``.
        index: A ``TfidfIndex``, or its folder. None: ``InfoNCELoss`` gets row numbers and epoch, but no negatives.
        column: Column of the texts.
        copies: Number of negatives of each text.
        name: See ``add_negatives``.
        row_column: Column of row numbers.
        prompts: As in ``SentenceTransformerDataCollator``. Default: from the training arguments.
        router_mapping: As in ``SentenceTransformerDataCollator``. Default: from the training arguments.
        **drawing: See ``DrawOptions``, except ``copy`` and ``epoch``.

    Raises:
        InputError: For an invalid option. When a batch is made: for a dataset without a column of positives, for a
            text that is not a string, or if the callback was not given to the trainer.
    """

    def __init__(
        self,
        preprocess_fn: Callable[..., Any],
        index: Index | None,
        column: str = "anchor",
        copies: int = 1,
        *,
        name: str = "negative",
        row_column: str = "row",
        prompts: Any = None,
        router_mapping: Any = None,
        **drawing: Unpack[DrawOptions],
    ) -> None:
        super().__init__(preprocess_fn, prompts=prompts or {}, router_mapping=router_mapping or {})
        self.drawn = None if index is None else _Drawn(index, column, copies, name, drawing)
        self.row_column = row_column
        # In shared memory, so that persistent worker processes read the current epoch.
        self._epoch = torch.full((), -1, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self.callback = EpochCallback(self)
        """The callback to give to the trainer."""

    @property
    def epoch(self) -> int | None:
        """The epoch, from 0; None before training."""
        epoch = int(self._epoch)
        return None if epoch < 0 else epoch

    @epoch.setter
    def epoch(self, value: int) -> None:
        self._epoch.fill_(value)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        if not features or self.row_column not in features[0]:
            inputs: dict[str, Any] = super().__call__(features)
            return inputs
        epoch = self.epoch
        if epoch is None:
            raise InputError(
                "NegativesCollator: the epoch is not known; give callbacks=[collator.callback] to the trainer"
            )
        rows = [feature[self.row_column] for feature in features]
        features = [{name: value for name, value in feature.items() if name != self.row_column} for feature in features]
        if self.drawn is not None:
            self.drawn.check(list(features[0]))
            if _lacks_positives(features[0], None):
                raise InputError(f"dataset: {NO_POSITIVES}")
            columns = self.drawn([feature[self.drawn.column] for feature in features], rows, epoch=epoch)
            for position, feature in enumerate(features):
                feature.update({name: texts[position] for name, texts in columns.items()})
        batch: dict[str, Any] = super().__call__(features)
        first = next((name.removesuffix("input_ids") for name in batch if name.endswith("_input_ids")), None)
        if first is not None:
            batch[first + ROW] = torch.tensor(rows)
            batch[first + EPOCH] = torch.full((len(rows),), epoch)
        return batch


class EpochCallback(TrainerCallback):
    """Passes the epoch, the prompts and the router mapping of the trainer to a collator."""

    def __init__(self, collator: NegativesCollator) -> None:
        self.collator = collator
        self.given = collator.prompts, collator.router_mapping

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Copies what the trainer passes only to its default collator; an evaluation before training has epoch 0."""
        self.collator.epoch = self.collator.epoch or 0
        prompts, mapping = self.given
        self.collator.prompts = prompts or getattr(args, "prompts", None) or {}
        self.collator.router_mapping = mapping or getattr(args, "router_mapping", None) or {}

    on_train_begin = on_init_end  # for a callback that was added to the trainer later

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Sets the epoch, rounded down, because a resumed run may begin in the middle of an epoch."""
        self.collator.epoch = int((state.epoch or 0) + 1e-6)


class _Drawn:
    """Draws the columns of negatives for the texts of a column."""

    def __init__(self, index: Index, column: str, copies: int, name: str, drawing: DrawOptions) -> None:
        self.index = index if isinstance(index, TfidfIndex) else TfidfIndex.open(index)
        self.index.draw_options(**drawing)  # raises InputError for an invalid option
        self.column, self.drawing = column, drawing
        self.names = [f"{name}_{number + 1}" for number in range(check_integer(copies, "copies"))]
        self.names = [name] if copies == 1 else self.names

    def __call__(self, texts: Sequence[str], rows: Sequence[int], **epoch: int) -> dict[str, list[str]]:
        draw: Any = self.index.augment
        return {name: draw(texts, rows=rows, copy=n, **epoch, **self.drawing) for n, name in enumerate(self.names)}

    def check(self, columns: Sequence[str]) -> None:
        if taken := set(self.names) & set(columns):
            raise InputError(f"column {min(taken)}: the dataset already has a column of this name; give another name")


NO_POSITIVES = (
    "has only one column of texts, so that the loss would use a negative, the second column, as the positive; add a "
    "second column, for example one with the same sentences (SimCSE)"
)


def _lacks_positives(names: Iterable[str], row_column: str | None) -> bool:
    """Returns whether a dataset has no column but the anchor, apart from labels and row numbers."""
    return len(set(names) - {*DEFAULT_LABEL_COLUMNS, "dataset_name", row_column}) < 2
