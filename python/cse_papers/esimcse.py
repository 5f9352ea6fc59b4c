"""ESimCSE: repeated tokens, and a queue of negatives from a momentum encoder (Wu et al. 2022, arXiv:2109.04380)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from cse.augment.base import Draws, Edit
from cse.context import ModelContext
from cse.encoder.modules import OnlyIn
from cse.hooks.base import BatchStep, FeatureMethod, Views
from cse.options import Opt


@dataclass(frozen=True)
class RepetitionOptions:
    """Options of the repetition; the default rate is the published value for BERT-base."""

    rate: Annotated[float, Gt(0), Lt(1), Opt("fraction of the tokens that are repeated at most")] = 0.32
    variant: Annotated[
        Literal["paper", "release"],
        Opt("largest number of repeated tokens, as in the paper or as in the released code"),
    ] = "paper"


class TokenEdit(Edit):
    """Base class of edits of tokens; as an edit of texts, for example in ``one-of``, it changes words."""

    edits_tokens = True

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        split = [text.split() for text in texts]
        edited = self.edit_tokens(split, rows, draws)
        return [text if new == words else " ".join(new) for text, words, new in zip(texts, split, edited, strict=True)]


class Repetition(TokenEdit):
    """Repeats random tokens once each, so that the positive differs in length from the anchor.

    Tokens (word pieces) are repeated after truncation, as in the released code, so that the repeated sentence keeps its
    end and may be longer than the maximum length. Special tokens are not repeated. The number of repeated tokens is
    drawn uniformly from 0 to a maximum. In a sentence of n tokens, this is max(2, floor(rate * n)) but at most n, as in
    the paper; with ``variant="release"``, it is min(10, floor(rate * (n + 2))) - 1, where n + 2 counts the special
    tokens of BERT, and at least 0. As an edit of texts, for example in ``one-of``, the method repeats words.
    """

    Options = RepetitionOptions
    summary = "repeats tokens (ESimCSE)"

    def most(self, count: int) -> int:
        """Returns the largest number of repeated tokens in a sentence of ``count`` tokens."""
        if self.options.variant == "release":
            return max(0, min(10, int(self.options.rate * (count + 2))) - 1)
        return min(max(2, int(self.options.rate * count)), count)

    def most_tokens(self, count: int) -> int:
        return count + self.most(count)

    def edit_tokens(self, ids: Sequence[list[Any]], rows: npt.NDArray[np.int64], draws: Draws) -> list[list[Any]]:
        counts = draws.uniform(rows, "repetition count")[:, 0]
        places = draws.uniform(rows, "repetition", max(map(len, ids), default=0))
        edited = []
        for tokens, u, keys in zip(ids, counts, places, strict=True):
            count = int(u * (self.most(len(tokens)) + 1))
            repeated = set(np.argsort(keys[: len(tokens)], kind="stable")[:count].tolist())
            edited.append([token for place, token in enumerate(tokens) for _ in range(1 + (place in repeated))])
        return edited


@dataclass(frozen=True)
class MomentumOptions:
    """Options of the queue; the defaults are the published settings for BERT-base with batches of 64."""

    size: Annotated[int, Ge(1), Opt("length of the queue of embeddings from earlier batches")] = 160
    decay: Annotated[float, Ge(0), Lt(1), Opt("decay of the moving average of the weights")] = 0.995
    variant: Annotated[
        Literal["paper", "release"],
        Opt("head of the momentum encoder; paper: a moving average; release: that of the encoder"),
    ] = "paper"


class Momentum(FeatureMethod):
    """Adds the sentences of earlier batches, encoded by a moving average of the encoder, as further negatives.

    The momentum encoder starts as a copy of the encoder, and runs without dropout. If the encoder has a head, the
    embeddings in the queue have passed through the momentum encoder's head: a moving average of the encoder's head, as
    in the paper, or with ``variant="release"`` the encoder's head itself, with its weights at the step at which the
    embeddings are computed, as in the released code. Checkpoints contain the momentum encoder and the queue; neither is
    saved with the encoder. A sentence in the queue is not a negative of an equal text (``Views.keys``).
    """

    Options = MomentumOptions
    queue: Tensor
    keys: Tensor
    filled: Tensor
    summary = "a queue of negatives from a momentum encoder (ESimCSE)"
    recordable = True
    changes = frozenset({"negative"})
    encodes = True

    def __init__(self, options: MomentumOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        self.source = (context.encoder,)  # not a submodule
        self.encoder = copy.deepcopy(context.encoder).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(options.size, context.encoder.embedding_dim))
        self.register_buffer("keys", torch.zeros(options.size, 1, dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def train(self, mode: bool = True) -> Momentum:
        """Sets the mode; in training, the momentum encoder applies its head, but no dropout."""
        super().train(mode)
        self.encoder.eval()
        for module in self.encoder:
            if isinstance(module, OnlyIn):
                module.training = mode  # the modules in it stay in evaluation mode
        return self

    @torch.no_grad()
    def after_step(self) -> None:
        ours, theirs = self.encoder.parameters(), self.source[0].parameters()
        for average, parameter in zip(ours, theirs, strict=True):
            average.lerp_(parameter, 1 - self.options.decay)
        head = self.source[0].head if self.options.variant == "release" else None
        if head is not None and self.encoder.head is not None:
            self.encoder.head.load_state_dict(head.state_dict())

    def forward(self, views: Views, step: BatchStep) -> Views:
        """Returns the views with the additional view ``queue``, then adds this batch's anchors to the queue."""
        valid = torch.arange(len(self.queue), device=self.queue.device) < self.filled
        own = views.keys["anchor"][:, :1] if views.keys else None  # those of the anchors alone, without their positives
        known = None if own is None else self.keys
        more = views.with_negatives("queue", self.queue.clone().to(views["anchor"]), valid, known)
        with torch.no_grad():
            z = step.encode("anchor", self.encoder).to(self.queue)
            self.queue = torch.cat([z, self.queue])[: len(self.queue)]
            if own is not None:
                self.keys = torch.cat([own, self.keys])[: len(self.keys)]
            self.filled = self.filled + len(z)
        return more
