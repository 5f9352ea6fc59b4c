"""Terms with a discriminator: AugCSE and DiffCSE.

AugCSE (Tang, Kocyigit and Wijaya 2022) trains a discriminator of edits with gradient reversal. DiffCSE (Chuang et al.
2022, arXiv:2204.10298, section 3) detects replaced tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from ..errors import InputError
from ..options import Opt
from ..views import RowStep, Views, embedding_output
from .auxiliary import mask_tokens
from .base import RowTerm

if TYPE_CHECKING:
    from ..context import Context


@dataclass(frozen=True)
class AugCSEOptions:
    """Options of AugCSE."""

    weight: Annotated[float, Ge(0), Opt("weight of the discriminator's loss")] = 0.005
    reversal: Annotated[float, Ge(0), Opt("factor of the encoder's reversed gradient")] = 1.0
    dropout: Annotated[float, Ge(0), Lt(1), Opt("dropout probability in the discriminator")] = 0.2
    variant: Annotated[
        Literal["cross-entropy", "release"],
        Opt("loss of the discriminator; release: binary cross-entropies of outputs between -1 and 1"),
    ] = "cross-entropy"


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return z.view_as(z)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return -ctx.scale * gradient, None


def reversed_gradient(z: Tensor, scale: float) -> Tensor:
    """Returns ``z``; in the backward pass, its gradient is multiplied by ``-scale``.

    See Ganin and Lempitsky (2015, arXiv:1409.7495).
    """
    found: Tensor = _Reversed.apply(z, scale)  # type: ignore[no-untyped-call]
    return found


def same_tokens(first: Mapping[str, Tensor], second: Mapping[str, Tensor], left: bool) -> Tensor:
    """Returns ``(n,)`` bool, True for the rows with the same token ids in two blocks.

    Args:
        first: Token ids and attention masks, ``(n, T)``.
        second: The same, with any other T.
        left: Whether padding is on the left.
    """
    lengths = [each["attention_mask"].sum(1) for each in (first, second)]
    width = min(first["input_ids"].shape[1], second["input_ids"].shape[1])
    part = slice(-width, None) if left else slice(width)
    equal = (first["input_ids"][:, part] == second["input_ids"][:, part]) | (first["attention_mask"][:, part] == 0)
    return (lengths[0] == lengths[1]) & equal.all(1)


class AugCSE(RowTerm):
    """Trains a discriminator to predict which edit changed a sentence, and trains the encoder against it.

    The discriminator receives the embeddings of a sentence and of its edited form, one after the other. Its layers are
    Linear(2D, 4D), tanh, and Linear(4D, number of edits + 1), with dropout before each linear layer. The last class
    stands for sentences that the edit left unchanged. The term is ``weight`` times the mean cross-entropy. With
    ``variant="release"``, as in the released code, the outputs pass a tanh, and the term is ``weight`` times the binary
    cross-entropy of each output, averaged over outputs and rows. The discriminator minimises the term; its gradient
    reaches the encoder multiplied by ``-reversal``.

    The edits are those of ``--positive one-of``. With ``one-of.as_positive`` set to False, as in the released settings,
    the edited sentence is used by the discriminator only. These settings also project the embeddings before both losses
    (``--feature-augmentation projector``). The default weight, reversal and dropout are those of the released settings.
    Differences from the released code: the edits are others than its transformations of NL-Augmenter, an edit is drawn
    for each sentence in each epoch instead of once, and the contrastive loss is that of the run, instead of the mean
    over both directions of InfoNCE.

    Raises ``InputError`` if the positives do not come from ``one-of``.
    """

    Options = AugCSEOptions
    summary = "an adversarial discriminator of the edits of --positive one-of (AugCSE)"
    reads = frozenset({"positive"})
    logged = ("edit_accuracy",)

    def __init__(self, options: AugCSEOptions, context: Context) -> None:
        super().__init__(options, context)
        if "edits" not in context.told:
            raise InputError("--loss-term augcse: needs positives made by several edits; use --positive one-of")
        size = context.trained.embedding_dim
        self.left = context.trained.tokenizer.padding_side == "left"
        self.edits, self.purpose = context.told["edits"]
        self.discriminator = nn.Sequential(
            nn.Dropout(options.dropout),
            nn.Linear(2 * size, 4 * size),
            nn.Tanh(),
            nn.Dropout(options.dropout),
            nn.Linear(4 * size, self.edits + 1),
        )

    @classmethod
    def implies(cls, options: AugCSEOptions) -> dict[str, Any]:
        """Returns ``one-of`` as the default of ``positive``."""
        return {"positive": "one-of"}

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
        """Returns the sum of the weighted losses of these rows, and the number of rows."""
        options: AugCSEOptions = self.options
        name = "edited" if "edited" in views else "positive"
        z = torch.cat([views["anchor"], views[name]], dim=1)
        # Repeats the draw with which ``one-of`` chose the edit of each row.
        edit = (step.uniform(self.purpose, 1)[:, 0] * self.edits).long().clamp(max=self.edits - 1)
        label = edit.masked_fill(same_tokens(step.tokens["anchor"], step.tokens[name], self.left), self.edits)
        logits = self.discriminator(reversed_gradient(z, options.reversal))
        count = torch.full((), len(z), device=z.device)  # torch.tensor would wait for the device
        self.metrics = {"edit_accuracy": ((logits.argmax(1) == label).sum().detach(), count)}
        if options.variant == "release":
            logits = logits.tanh()
            wanted = one_hot(label, self.edits + 1).to(logits)
            each = binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
            return options.weight * each.sum(), count
        return options.weight * cross_entropy(logits, label, reduction="sum"), count


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

    Raises ``InputError`` for a generator with a different vocabulary, or a tokenizer without a mask token.
    """

    Options = DiffCSEOptions
    summary = "replaced token detection, given the embedding (DiffCSE)"
    reads = frozenset({"anchor", "positive"})
    logged = ("rtd_accuracy",)

    def __init__(self, options: DiffCSEOptions, context: Context) -> None:
        super().__init__(options, context)
        encoder = context.trained
        self.generator = context.load_masked_language_model(options.generator, "diffcse.generator")
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
        """Returns the weighted sum of the losses over the tokens of both views, and the number of tokens."""
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
        purposes = (f"diffcse {view} {what}" for what in ("selection", "change", "token"))
        uniform = torch.cat([step.uniform(purpose, length) for purpose in purposes], dim=1)
        special = torch.isin(ids, self.special)
        masked, labels = mask_tokens(ids, special, uniform, self.options.share, self.mask_id, self.vocabulary)
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
        found: Tensor = self.classifier(states)
        return found
