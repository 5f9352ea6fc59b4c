"""Which views of a sentence make a batch.

A step is a pure function of its number: its rows, their texts, on UNA's turn their synthetic negatives, and the
mixing partners. So batches can be prepared ahead by another thread, and a run repeats itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .. import rng as keyed
from ..data.corpus import Corpus
from ..losses.contrastive import partner_count
from ..tfidf.index import TfidfIndex
from .config import TrainConfig

__all__ = ["Batch", "Batches"]


@dataclass(frozen=True)
class Batch:
    """One step's input. ``texts`` are B sentences, then B synthetic negatives on UNA's turn."""

    step: int
    epoch: int
    rows: npt.NDArray[np.int64]
    texts: list[str]
    views: tuple[int, ...]
    """The views a loss sees, as blocks of ``texts``: (0, 0) is a, a+; (0, 0, 1) a, a+, n; (0, 0, 1, 1) a, a+, n, n+."""
    partners: npt.NDArray[np.int64] | None
    unchanged: int
    """Synthetic negatives that equal their sentence (no word to replace)."""


class Batches:
    """The batches of a run, by step."""

    def __init__(
        self,
        config: TrainConfig,
        corpus: Corpus,
        rows: npt.NDArray[np.int64],
        index: TfidfIndex | None,
    ) -> None:
        assert config.batch_size is not None
        self.config, self.corpus, self.rows, self.index = config, corpus, rows, index
        self.size: int = config.batch_size
        # A last batch of a single row would have no negatives: it is left out.
        whole, rest = divmod(len(rows), self.size)
        self.per_epoch = whole + (rest > 1)
        self.steps = self.per_epoch * config.epochs
        if config.max_steps is not None:
            self.steps = min(self.steps, config.max_steps)
        self._epoch = -1
        self._order = rows

    def __len__(self) -> int:
        """Steps of the run."""
        return self.steps

    def una_turn(self, step: int) -> bool:
        """Whether this step sees synthetic negatives."""
        every = self.config.una_every
        return self.index is not None and every > 0 and step % every == 0

    def __getitem__(self, step: int) -> Batch:
        """The batch of a step."""
        config = self.config
        epoch, nth = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = keyed.shuffled(self.rows, config.seed, epoch), epoch
        rows = self._order[nth * self.size : (nth + 1) * self.size]
        texts = self.corpus.take(rows)
        views: tuple[int, ...] = (0, 0)
        unchanged = 0
        if self.una_turn(step):
            assert self.index is not None
            negatives, report = self.index.augment_report(
                texts,
                rows=rows.tolist(),
                **config.drawing(epoch),
            )
            texts = texts + negatives
            views = (0, 0, 1, 1) if config.una_as == "rows" else (0, 0, 1)
            unchanged = report.unchanged
        partners = None
        if config.loss == "mixed" and config.mix_variant == "paper":
            anchors, candidates = partner_count(len(views), config.negatives or "cross")
            partners = keyed.partners(rows, config.seed, epoch, anchors, candidates)
        return Batch(step, epoch, rows, texts, views, partners, unchanged)
