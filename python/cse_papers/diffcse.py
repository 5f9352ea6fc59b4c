"""DiffCSE: detection of replaced tokens, and a projector (Chuang et al. 2022, arXiv:2204.10298)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt, Lt
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cse.context import ModelContext
from cse.hooks.base import FeatureMethod
from cse.losses.auxiliary import draw_masks
from cse.losses.base import RowTerm
from cse.options import Opt
from cse.views import BatchStep, RowStep, Views, embedding_output


class Projector(FeatureMethod):
    """Projects the embeddings before the loss, in training only.

    The layers are: linear (D, 2D), batch normalisation, ReLU, linear (2D, D), batch normalisation without affine
    parameters. Batch statistics are computed over the rows of all views, across all processes and all chunks of
    gradient caching.
    """

    summary = "a projector with batch normalisation, in training only (DiffCSE)"
    recordable = True
    other_space = True

    def __init__(self, options: Any, context: ModelContext) -> None:
        super().__init__(options, context)
        size = context.encoder.embedding_dim
        self.layers = nn.Sequential(
            nn.Linear(size, 2 * size, bias=False),
            nn.BatchNorm1d(2 * size),
            nn.ReLU(),
            nn.Linear(2 * size, size, bias=False),
            nn.BatchNorm1d(size, affine=False),
        )

    def forward(self, views: Views, step: BatchStep) -> Views:
        names = list(views.embeddings)
        projected = self.layers(torch.cat([views[name] for name in names]))
        parts = projected.split([len(views[name]) for name in names])
        return views.replace(embeddings=dict(zip(names, parts, strict=True)))


@dataclass(frozen=True)
class DiffCSEOptions:
    """Options of DiffCSE; the defaults are the settings published for BERT-base on STS."""

    weight: Annotated[float, Gt(0), Opt("lambda, the weight of the term")] = 0.005
    share: Annotated[float, Gt(0), Lt(1), Opt("fraction of tokens to mask")] = 0.3
    generator: Annotated[
        str, Opt("masked language model that predicts the masked tokens; must use the same tokenizer")
    ] = "distilbert-base-uncased"
    variant: Annotated[
        Literal["paper", "release"],
        Opt(
            "release: uses the generator's most probable token at every position except the first; padding "
            "counts as not replaced"
        ),
    ] = "paper"


class DiffCSE(RowTerm):
    """``weight`` times the mean cross-entropy of detecting replaced tokens, given the embedding of the sentence.

    For each of the two views, tokens are masked, and a frozen generator predicts them. A discriminator, a copy of the
    transformer with separate weights, classifies each token of the result as replaced or not. At position 0, the output
    of the discriminator's embedding layer is replaced by the projected embedding of the sentence; the term trains the
    encoder through this embedding. The variant ``paper`` samples the predicted tokens and leaves padding out of the
    mean. In both variants the generator runs without dropout, unlike in the released code. Masks and samples are
    functions of (seed, epoch, row, token position).
    """

    Options = DiffCSEOptions
    summary = "replaced token detection, given the embedding (DiffCSE)"
    recordable = True
    reads = frozenset({"anchor", "positive"})
    logged = ("rtd_accuracy",)

    def __init__(self, options: DiffCSEOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        encoder = context.encoder
        flag = "diffcse.generator"
        self.generator = context.load_same_masked_language_model(options.generator, flag)
        self.discriminator: Any = copy.deepcopy(encoder.backbone)
        self.classifier = nn.Linear(encoder.backbone.config.hidden_size, 2)
        self.special: Tensor
        self.register_buffer("special", torch.tensor(encoder.tokenizer.all_special_ids), persistent=False)
        self.mask_id: int = encoder.tokenizer.mask_token_id
        self.vocabulary = len(encoder.tokenizer)

    @classmethod
    def implies(cls, options: DiffCSEOptions) -> dict[str, Any]:
        """Returns ``projector`` as the default of ``feature_augmentations``. It affects the other loss terms too."""
        return {"feature_augmentations": ("projector",)}

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        tokens = step.tokens["anchor"]
        total, count, right = (views["anchor"].new_zeros(()) for _ in range(3))
        for view in ("anchor", "positive"):
            filled, replaced = self.edited(tokens, step, view)
            counted = torch.ones_like(replaced)
            if self.options.variant == "paper":
                counted = tokens["attention_mask"].bool()
            scores = self.scores({**tokens, "input_ids": filled}, views[view])
            losses = cross_entropy(scores.transpose(1, 2), replaced.long(), reduction="none")
            total = total + (losses * counted).sum()
            count = count + counted.sum()
            right = right + ((scores.argmax(-1) == replaced.long()) & counted).sum()
        self.metrics = {"rtd_accuracy": (right, count)}
        return self.options.weight * total, count

    def edited(self, tokens: Any, step: RowStep, view: str) -> tuple[Tensor, Tensor]:
        """Returns the token ids ``(n, T)`` after replacement, and bool ``(n, T)``, True for replaced tokens."""
        ids, mask = tokens["input_ids"], tokens["attention_mask"].bool()
        length = ids.shape[1]
        masked, labels = draw_masks(
            step, f"diffcse {view}", ids, self.special, self.options.share, self.mask_id, self.vocabulary
        )
        logits = self.generator(**{**tokens, "input_ids": masked}).logits.float()[..., : self.vocabulary]
        if self.options.variant == "release":
            filled = logits.argmax(-1)
            filled[:, 0] = ids[:, 0]
            filled = torch.where(mask, filled, ids)
            return filled, (filled != ids) & mask
        u = step.uniform(f"diffcse {view} sample", length)[..., None]
        sampled = (logits.softmax(-1).cumsum(-1) < u).sum(-1).clamp(max=self.vocabulary - 1)
        filled = torch.where(labels >= 0, sampled, ids)
        return filled, filled != ids

    def scores(self, tokens: dict[str, Tensor], z: Tensor) -> Tensor:
        """Returns the logits ``(n, T, 2)`` of the discriminator, given embeddings ``(n, D)``."""

        def conditioned(states: Tensor) -> Tensor:
            return torch.cat([z[:, None].to(states.dtype), states[:, 1:]], dim=1)

        with embedding_output(self.discriminator, conditioned):
            states = self.discriminator(**tokens).last_hidden_state
        logits: Tensor = self.classifier(states)
        return logits
