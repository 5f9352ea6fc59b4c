"""Terms that are added to a contrastive loss.

- A loss on the first dimensions of the embeddings (Matryoshka; Kusupati et al. 2022, arXiv:2205.13147).
- A term that keeps the similarities of the base model, to prevent forgetting in training on new documents.
- Masked language modelling (SimCSE, section 6.3; Devlin et al. 2019).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

from ..errors import InputError
from ..views import BatchStep, RowStep, Views
from .base import BatchTerm, RowTerm
from .options import KeepSimilaritiesOptions, MatryoshkaOptions, MLMOptions, parse_dims

if TYPE_CHECKING:
    from ..context import ModelContext


class Matryoshka(BatchTerm):
    """The run's contrastive loss on the first d dimensions of all views, summed over all d in ``dims``.

    Every d has weight 1. The full number of dimensions is skipped, because the run's loss already uses it; the sum of
    this term and the run's loss is the loss of the paper. The saved model records the dimensions.
    """

    Options = MatryoshkaOptions
    summary = "adds the run's contrastive loss on the first dimensions of the embeddings (Matryoshka)"
    recordable = True

    def __init__(self, options: MatryoshkaOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
        if encoder.head is not None and not encoder.keep_head:
            raise InputError(
                "--dims would train the dimensions of the output of the MLP head, which is not saved; "
                "add --keep-head, or use a pooler without a head, such as --pooler cls_before_pooler"
            )
        width = encoder.embedding_dim
        dims = parse_dims(options.dims)
        if dims[0] > width:
            raise InputError(f"--dims {dims[0]}: the embeddings have {width} dimensions; give numbers below {width}")
        self.dims = [dim for dim in dims if dim < width]
        encoder.trained_dims = (width, *self.dims)

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        assert step.contrastive is not None  # TrainConfig requires a contrastive loss
        total = views["anchor"].new_zeros(())
        for size in self.dims:
            cut = {name: z[..., :size] for name, z in views.embeddings.items()}
            own, compared = (
                {name: z[..., :size] for name, z in table.items()} for table in (views.own_negatives, views.compared)
            )
            total = total + step.contrastive(views.replace(embeddings=cut, own_negatives=own, compared=compared))
        return total


def similarity_divergence(base: Tensor, z: Tensor, temperature: float, valid: Tensor | None = None) -> Tensor:
    """Returns the mean over rows of KL(p || q) between softmax distributions over the other rows of the batch.

    For row i, p is the softmax of cos(base_i, base_j) / temperature over the rows j != i; q is the same function of
    ``z``, ``(B, D)`` (distillation of similarities: Fang et al. 2021, SEED, arXiv:2101.04731). Rows that are not
    ``valid`` are left out.

    >>> z = torch.eye(3)
    >>> similarity_divergence(z, 2 * z, temperature=0.1).item()
    0.0
    """
    rows = len(z)
    holds = torch.ones(rows, dtype=torch.bool, device=z.device) if valid is None else valid
    removed = torch.eye(rows, dtype=torch.bool, device=z.device) | ~holds[None, :]
    # A large negative number instead of -inf, so that rows without a valid column have finite gradients.
    logs = [
        log_softmax((normalize(view, dim=-1) @ normalize(view, dim=-1).T / temperature).masked_fill(removed, -1e4), -1)
        for view in (base, z)
    ]
    each_row = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)  # (B,)
    return torch.where(holds, each_row, 0.0).sum() / holds.sum().clamp(min=1)


class KeepSimilarities(BatchTerm):
    """``weight`` times the divergence of the encoder's similarities in a batch from the base model's.

    The divergence is the mean of two values of ``similarity_divergence``, one for the anchors and one for the
    positives; rows that a label teaches are left out. The base model is the encoder before training, without dropout
    and gradients.
    """

    Options = KeepSimilaritiesOptions
    summary = "keeps the similarities that the model had before training (self-distillation)"
    recordable = True
    reads = frozenset({"anchor", "positive"})

    def __init__(self, options: KeepSimilaritiesOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        self.base = context.base

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        names = ("anchor", "positive")
        kept = {name: views.masks.get(name) for name in names}
        if views.taught is not None:
            kept = {name: views.valid(name) & ~views.taught for name in names}
        divergences = [
            similarity_divergence(
                step.encode(name, self.base, rows=kept[name]), views[name], self.options.temperature, kept[name]
            )
            for name in names
        ]
        total = torch.stack(divergences).mean()
        self.metrics = {"kept": total.detach()}
        weighted: Tensor = self.options.weight * total
        return weighted


IGNORED = -100


def mask_tokens(
    ids: Tensor, special: Tensor, uniform: Tensor, share: float, mask_id: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Masks tokens as in BERT: of those selected, 80 % become the mask token, 10 % a random token, and 10 % are kept.

    Of ids ``(B, T)``, those that are not ``special`` are selected with the probability ``share``. ``uniform`` holds
    ``(B, 3 T)`` numbers in [0, 1): T each for the selection, the kind of change, and the random token. Also returns the
    labels: the original ids of the selected tokens, and -100 elsewhere.
    """
    select, kind, token = uniform.chunk(3, dim=1)
    selected = (select < share) & ~special
    labels = torch.where(selected, ids, IGNORED)
    random = (token * vocabulary).long().clamp(max=vocabulary - 1)
    changed = torch.where(kind < 0.8, mask_id, torch.where(kind < 0.9, random, ids))
    return torch.where(selected, changed, ids), labels


def draw_masks(
    step: RowStep, purpose: str, ids: Tensor, special: Tensor, share: float, mask_id: int, vocabulary: int
) -> tuple[Tensor, Tensor]:
    """Masks tokens as ``mask_tokens`` does, with random numbers that are a function of (seed, epoch, row, purpose)."""
    purposes = (f"{purpose} {what}" for what in ("selection", "change", "token"))
    uniform = torch.cat([step.uniform(name, ids.shape[1]) for name in purposes], dim=1)
    return mask_tokens(ids, torch.isin(ids, special), uniform, share, mask_id, vocabulary)


class MLM(RowTerm):
    """``weight`` times the mean cross-entropy of the masked tokens, from a separate forward pass over the anchors.

    The head is loaded from the pretrained model, or from the folder in which an earlier run saved it; if there is none,
    it is initialised at random. Masks are functions of (seed, epoch, row, token position).
    """

    Options = MLMOptions
    summary = "masked language modelling on the sentences of the batch (SimCSE's auxiliary objective)"
    recordable = True
    reads = frozenset()

    def __init__(self, options: MLMOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
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
        tokens["input_ids"], labels = draw_masks(
            step, "mlm", ids, self.special, self.options.share, self.mask_id, self.vocabulary
        )
        logits = self.model(**tokens).logits.transpose(1, 2)  # (B, V, T)
        losses = cross_entropy(logits, labels, ignore_index=IGNORED, reduction="none")
        # Sums, from which the training loop computes the mean over all chunks and processes.
        return self.options.weight * losses.sum(1).sum(), (labels != IGNORED).sum().to(losses.dtype)
