"""Distils the base model and word overlap into the encoder; an example of a loss term added by a user.

``TrainConfig.imports`` loads the term ``distil`` from this file. For each anchor, the target is a distribution over the
candidates of the batch, computed from a weighted sum of the base model's similarities and word overlap. The motivation
is that on four of five collections, reciprocal rank fusion of the base model and BM25 is better than either alone (see
``python benches/domain/domain.py table``). With ``loss = "distil"``, the term is the only loss. No candidate is then
labelled as a positive or a negative, so there are no false positives or false negatives.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from cse.losses import LOSS_TERMS
from cse.losses.base import BatchTerm
from cse.views import BatchStep, Frozen, Views


class WordPieces(torch.nn.Module):
    """Encodes token ids ``(n, T)`` as unit vectors ``(n, V)`` of ln(1 + count) * idf, without special tokens.

    A batch term does not receive the texts of the batch, but ``step.encode`` passes their token ids to this encoder.
    """

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        super().__init__()
        found = tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        df = np.bincount(np.concatenate([np.unique(ids) for ids in found]).astype(int), minlength=len(tokenizer))
        idf = np.log((1 + len(texts)) / (1 + df))
        idf[tokenizer.all_special_ids] = 0
        self.idf = torch.tensor(idf, dtype=torch.float32)
        self.embedding_dim = len(idf)

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Returns the vectors; padding has no weight, because it is a special token."""
        ids = inputs["input_ids"]
        counts = torch.zeros(len(ids), self.embedding_dim).scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float))
        return normalize(counts.log1p() * self.idf, dim=-1)


@dataclass(frozen=True)
class DistilOptions:
    """Options of ``distil``."""

    weight: float = 1.0
    temperature: float = 0.05
    lexical: float = 0.5
    """Weight of word overlap, 0 to 1; the weight of the base model is 1 minus this value."""


class Distil(BatchTerm):
    """KL divergence of the encoder's softmax over all candidates from a target distribution.

    The target is the softmax of (1 - lexical) * cosine of the base model + lexical * cosine of TF-IDF vectors of word
    pieces, at the same temperature. The candidates are all positives, including the anchor's, and all negatives of the
    batch.
    """

    Options = DistilOptions

    def __init__(self, options: DistilOptions, context: Any) -> None:
        super().__init__(options, context)
        self.base = Frozen(copy.deepcopy(context.trained))
        texts = context.corpus.take(np.arange(len(context.corpus)))
        self.words = Frozen(WordPieces(context.trained.tokenizer, texts))

    def forward(self, views: Views, step: BatchStep) -> Tensor:
        """Returns the mean divergence over the anchors, multiplied by the weight."""
        options = self.options
        names = ["positive", *views.named("negative")]
        assert step.encode is not None
        with torch.no_grad():
            sides = []
            for model in (self.base, self.words):
                anchors = normalize(step.encode("anchor", model), dim=-1)
                candidates = torch.cat([normalize(step.encode(name, model), dim=-1) for name in names])
                sides.append(anchors @ candidates.T)
            wanted = ((1 - options.lexical) * sides[0] + options.lexical * sides[1]) / options.temperature
        candidates = normalize(torch.cat([views[name] for name in names]), dim=-1)
        found = normalize(views["anchor"], dim=-1) @ candidates.T / options.temperature
        target, now = log_softmax(wanted, dim=-1), log_softmax(found, dim=-1)
        value = (target.exp() * (target - now)).sum(-1).mean()
        self.metrics = {"distilled": value.detach()}
        weighted: Tensor = options.weight * value
        return weighted


LOSS_TERMS.register("distil", Distil)
