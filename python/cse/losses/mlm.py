"""Masked language modelling as an auxiliary loss (SimCSE, section 6.3; Devlin et al. 2019)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..views import RowStep, Views
from .base import RowTerm
from .options import MLMOptions

__all__ = ["MLM", "MLMOptions", "mask_tokens"]

IGNORED = -100


def mask_tokens(
    ids: Tensor, special: Tensor, uniform: Tensor, share: float, mask_id: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Masks tokens as in BERT: of those selected, 80 % become the mask token, 10 % a random token, and 10 % are kept.

    Args:
        ids: ``(B, T)`` token ids.
        special: ``(B, T)`` bool, True for tokens that are never selected.
        uniform: ``(B, 3 T)`` numbers in [0, 1): T each for the selection, the kind of change, and the random token.
        share: Probability of selection.
        mask_id: Id of the mask token.
        vocabulary: Number of tokens in the vocabulary.

    Returns:
        The masked ids, and the labels: the original ids of the selected tokens, and -100 elsewhere.
    """
    select, kind, token = uniform.chunk(3, dim=1)
    selected = (select < share) & ~special
    labels = torch.where(selected, ids, IGNORED)
    random = (token * vocabulary).long().clamp(max=vocabulary - 1)
    changed = torch.where(kind < 0.8, mask_id, torch.where(kind < 0.9, random, ids))
    return torch.where(selected, changed, ids), labels


class MLM(RowTerm):
    """``weight`` times the mean cross-entropy of the masked tokens, from a separate forward pass over the anchors.

    The head is loaded from the pretrained model, or from the folder in which an earlier run saved it; if there is none,
    it is initialised at random. Its output weights are tied to the token embeddings if the model's configuration ties
    them. Masks are functions of (seed, epoch, row, token position).
    """

    Options = MLMOptions
    summary = "masked language modelling on the sentences of the batch (SimCSE's auxiliary objective)"
    reads = frozenset()

    def __init__(self, options: MLMOptions, context: Any) -> None:
        super().__init__(options, context)
        encoder = context.trained
        self.model, untrained = encoder.masked_language_model()
        self._save_head = encoder.save_masked_language_model
        if untrained:
            self.warning = (
                f"--mlm-weight: {encoder.source.name} has no head for masked language modelling, so one is trained "
                "from scratch; a checkpoint like bert-base-uncased has a head"
            )
        self.special: Tensor
        self.register_buffer("special", torch.tensor(encoder.tokenizer.all_special_ids), persistent=False)
        self.mask_id: int = encoder.tokenizer.mask_token_id
        self.vocabulary = len(encoder.tokenizer)

    def save(self, folder: Path) -> None:
        """Saves the head, so that a later run with --mlm-weight on the saved encoder can start from it."""
        self._save_head(self.model, folder)

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns the weighted sum of the losses of the masked tokens, and the number of these tokens."""
        tokens = dict(step.tokens["anchor"])
        ids = tokens["input_ids"]
        purposes = ("mlm selection", "mlm change", "mlm token")
        uniform = torch.cat([step.uniform(purpose, ids.shape[1]) for purpose in purposes], dim=1)
        special = torch.isin(ids, self.special)
        tokens["input_ids"], labels = mask_tokens(
            ids, special, uniform, self.options.share, self.mask_id, self.vocabulary
        )
        logits = self.model(**tokens).logits.transpose(1, 2)  # (B, V, T)
        each = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        # Sums, from which the training loop computes the mean over all chunks and processes.
        return self.options.weight * each.sum(1).sum(), (labels != IGNORED).sum().to(each.dtype)
