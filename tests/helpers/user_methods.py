"""An augmentation and a loss term of a user.

A configuration with ``imports=(FILE,)`` loads this file, which registers the methods.
"""

import math

import torch
from torch import nn
from torch.nn.functional import normalize

from cse.augment import AUGMENTATIONS
from cse.augment.base import Edit
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


class BallTerm(BatchTerm):
    """A loss term that has a trainable parameter and depends on the embeddings of all processes."""

    def __init__(self, options, context):
        super().__init__(options, context)
        self.w = nn.Parameter(torch.linspace(0.5, 1.5, context.encoder.embedding_dim))

    def forward(self, views, step):
        product = (normalize(views["anchor"], dim=-1) * self.w * normalize(views["positive"], dim=-1)).sum(1)
        return product.pow(2).mean() * math.pi


AUGMENTATIONS.register("repetition", Repetition)
LOSS_TERMS.register("ball", BallTerm)
