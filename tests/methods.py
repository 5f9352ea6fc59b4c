"""Example augmentations, hooks, loss terms and other methods, most of them short versions of published ones.

A configuration with ``imports=(FILE,)`` loads this file, which registers the methods.
"""

import copy
import math
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

from cse import InputError
from cse.augment import AUGMENTATIONS
from cse.augment.base import Edit, Paired, Pairing
from cse.features import ENCODER_METHODS, FEATURE_AUGMENTATIONS, HOOKS
from cse.features.base import EncoderMethod, FeatureMethod, Hook
from cse.losses import LOSS_TERMS
from cse.losses.base import BatchTerm


class Repetition(Edit):
    """Repeats one word in each sentence of four words or more (ESimCSE repeats word pieces)."""

    summary = "repeats a word"

    def __call__(self, texts, rows, draws):
        edited = []
        for text, u in zip(texts, draws.uniform(rows, "repetition")[:, 0], strict=True):
            words = text.split()
            place = int(u * len(words))
            edited.append(" ".join([*words[:place], words[place], *words[place:]]) if len(words) > 3 else text)
        return edited


class Parallel(Pairing):
    """The positive is the line with the same number in another file."""

    @dataclass(frozen=True)
    class Options:
        file: str = ""

    summary = "positives from a parallel file"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.lines = context.depends_on(options.file).read_text(encoding="utf8").split("\n")[:-1]
        if len(self.lines) != len(context.corpus):
            counts = f"{len(self.lines)} lines, but the corpus has {len(context.corpus)} rows"
            raise InputError(f"parallel.file: has {counts}")

    def __call__(self, texts, rows, draws):
        return Paired(list(texts), [self.lines[row] for row in rows])


class NextSentence(Pairing):
    """The positive is the next row of the corpus; the last row has none."""

    summary = "the next sentence"

    def __init__(self, options, context):
        super().__init__(options, context)
        self.corpus = context.corpus

    def __call__(self, texts, rows, draws):
        last = len(self.corpus) - 1
        return Paired(list(texts), self.corpus.take(np.minimum(rows + 1, last)), rows < last)


class Substitution(Edit):
    """Replaces a word of each sentence with the prediction of a masked language model."""

    @dataclass(frozen=True)
    class Options:
        model: str = ""

    summary = "substitution by a masked language model"
    expensive = True  # each rank edits only the rows that it encodes
    seen: ClassVar[list[int]] = []  # the number of rows of each call

    def __init__(self, options, context):
        from transformers import AutoModelForMaskedLM, AutoTokenizer

        super().__init__(options, context)
        self.model = AutoModelForMaskedLM.from_pretrained(options.model).eval()
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)

    @torch.no_grad()
    def __call__(self, texts, rows, draws):
        self.seen.append(len(texts))
        edited = []
        for text, u in zip(texts, draws.uniform(rows, "substitution")[:, 0], strict=True):
            words = text.split()
            place = int(u * len(words))
            masked = " ".join([*words[:place], "[MASK]", *words[place + 1 :]])
            tokens = self.tokenizer(masked, return_tensors="pt", truncation=True, max_length=32)
            at = tokens["input_ids"][0] == self.tokenizer.mask_token_id
            if not at.any():
                edited.append(text)
                continue
            guess = self.model(**tokens).logits[0, at][0].argmax()
            edited.append(masked.replace("[MASK]", self.tokenizer.decode([int(guess)])))
        return edited


class TokenShuffle(Hook):
    """Permutes the position ids of real tokens (ConSERT)."""

    def tokens(self, tokens, step):
        mask = tokens["attention_mask"].bool()
        keys = step.uniform("token shuffle", mask.shape[1]).to(mask.device).masked_fill(~mask, 2.0)
        return {**tokens, "position_ids": keys.argsort(1).argsort(1)}


class FeatureCutoff(Hook):
    """Sets random dimensions of the token embeddings to 0, the same dimensions for all tokens of a row (ConSERT)."""

    def embedded(self, states, tokens, step):
        keys = step.uniform("feature cutoff", states.shape[-1])
        return states * (keys.argsort(1).argsort(1) >= int(0.2 * states.shape[-1])).to(states)[:, None]


class Momentum(FeatureMethod):
    """Adds negatives: embeddings of earlier batches, computed by a momentum encoder (ESimCSE)."""

    @dataclass(frozen=True)
    class Options:
        size: int = 12
        decay: float = 0.9

    def __init__(self, options, context):
        super().__init__(options, context)
        self.source = (context.trained,)
        self.encoder = copy.deepcopy(context.trained).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(options.size, context.trained.embedding_dim))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))

    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self

    @torch.no_grad()
    def after_step(self):
        for ours, theirs in zip(self.encoder.parameters(), self.source[0].parameters(), strict=True):
            ours.lerp_(theirs, 1 - self.options.decay)

    def forward(self, views, step):
        valid = torch.arange(len(self.queue), device=self.queue.device) < self.filled
        views = views.with_negatives("queue", self.queue.clone().to(views["anchor"]), valid)
        with torch.no_grad():
            keys = step.encode("anchor", self.encoder).to(self.queue)
            self.queue = torch.cat([keys, self.queue])[: len(self.queue)]
            self.filled += len(keys)
        return views


class SelfContrast(BatchTerm):
    """Self-contrast and decorrelation, without negatives (SCD)."""

    def __init__(self, options, context):
        super().__init__(options, context)
        size = context.trained.embedding_dim
        self.projector = nn.Linear(size, 2 * size)
        self.norm = nn.BatchNorm1d(2 * size, affine=False)

    def forward(self, views, step):
        z1, z2 = views["anchor"], views["positive"]
        first, second = (self.norm(self.projector(z)) for z in (z1, z2))
        c = first.T @ second / len(z1)
        diagonal = c.diagonal()
        off = c.square().sum() - diagonal.square().sum()
        repel = (normalize(z1, dim=-1) * normalize(z2, dim=-1)).sum(-1).mean() / 0.05
        return repel + 0.005 * ((diagonal - 1).square().sum() + 0.012 * off)


class Average(EncoderMethod):
    """Keeps an exponential moving average of the weights; the average is evaluated and saved, not the weights."""

    def __init__(self, options, context):
        super().__init__(options, context)
        self.source = (context.trained,)
        for number, parameter in enumerate(context.trained.parameters()):
            self.register_buffer(f"average_{number}", parameter.detach().clone())

    def pairs(self):
        return [(getattr(self, f"average_{n}"), p) for n, p in enumerate(self.source[0].parameters())]

    @torch.no_grad()
    def after_step(self):
        for average, parameter in self.pairs():
            average.lerp_(parameter, 0.5)

    @contextmanager
    def for_evaluation(self):
        with torch.no_grad():
            kept = [parameter.clone() for _, parameter in self.pairs()]
            for average, parameter in self.pairs():
                parameter.copy_(average)
        try:
            yield
        finally:
            with torch.no_grad():
                for value, (_, parameter) in zip(kept, self.pairs(), strict=True):
                    parameter.copy_(value)


class BallTerm(BatchTerm):
    """A loss term that has a trainable parameter and depends on the embeddings of all processes."""

    def __init__(self, options, context):
        super().__init__(options, context)
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, context.trained.embedding_dim))

    def forward(self, views, step):
        product = (normalize(views["anchor"], dim=-1) * self.w * normalize(views["positive"], dim=-1)).sum(1)
        return product.pow(2).mean() * math.pi


AUGMENTATIONS.register("repetition", Repetition)
AUGMENTATIONS.register("parallel", Parallel)
AUGMENTATIONS.register("next", NextSentence)
AUGMENTATIONS.register("fill-in", Substitution)
HOOKS.register("shuffle", TokenShuffle)
HOOKS.register("cutoff", FeatureCutoff)
FEATURE_AUGMENTATIONS.register("momentum", Momentum)
LOSS_TERMS.register("scd", SelfContrast)
LOSS_TERMS.register("ball", BallTerm)
ENCODER_METHODS.register("average", Average)
