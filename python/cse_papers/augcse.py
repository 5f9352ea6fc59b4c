"""AugCSE: one of several edits for each sentence, and an adversarial discriminator of the edits.

Described by Tang, Kocyigit and Wijaya (2022). The discriminator is trained with gradient reversal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from annotated_types import Ge, Lt, MinLen
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from cse import InputError
from cse.augment import AUGMENTATIONS
from cse.augment.base import Draws, Edit
from cse.context import ModelContext, TextContext
from cse.losses.base import RowTerm
from cse.options import Opt
from cse.views import RowStep, Views

PURPOSE = "one of several edits"


@dataclass(frozen=True)
class OneOfOptions:
    """Options of ``one-of``. AugCSE uses twelve transformations of NL-Augmenter, which are not part of cse."""

    edits: Annotated[tuple[str, ...], MinLen(2), Opt("names of edits, run with default options")] = (
        "crop",
        "delete",
        "eda-swap",
        "eda-delete",
        "aeda",
        "repetition",
    )
    as_positive: Annotated[
        bool,
        Opt(
            "use the edited sentence as the positive; if false, the positive is the sentence itself under "
            "another dropout mask, and only loss terms such as augcse use the edited sentence"
        ),
    ] = True


def choices(uniform: npt.NDArray[Any], count: int) -> npt.NDArray[np.int64]:
    """Returns the indices of the chosen edits, ``(n,)`` in [0, count), from uniform numbers in [0, 1)."""
    indices: npt.NDArray[np.int64] = np.minimum((uniform.astype(np.float32) * count).astype(np.int64), count - 1)
    return indices


class OneOf(Edit):
    """Applies one of several edits, all equally likely, to each sentence.

    The edits change texts; ``repetition``, for example, repeats words.
    """

    Options = OneOfOptions
    summary = "one of several edits per sentence (AugCSE)"

    def __init__(self, options: OneOfOptions, context: TextContext) -> None:
        super().__init__(options, context)
        self.edits: list[Edit] = []
        for name in options.edits:
            kind: Any = AUGMENTATIONS.get(name, "one-of.edits")
            if not issubclass(kind, Edit) or kind.expensive or kind is OneOf:
                raise InputError(f"one-of.edits: {name} is not a fast edit of single sentences; omit {name}")
            edit = kind(kind.Options(), context)
            if edit.further():
                raise InputError(f"one-of.edits: {name} makes several sentences at a time; omit {name}")
            self.edits.append(edit)
        # With these values, the loss term of AugCSE repeats the draw to find out which edit was applied to each row.
        context.shared["edits"] = (len(self.edits), PURPOSE)

    @classmethod
    def is_positive(cls, options: OneOfOptions) -> bool:
        return options.as_positive

    def __call__(self, texts: Sequence[str], rows: npt.NDArray[np.int64], draws: Draws) -> list[str]:
        chosen = choices(draws.uniform(rows, PURPOSE)[:, 0], len(self.edits))
        edited = list(texts)
        for number, edit in enumerate(self.edits):
            places = np.flatnonzero(chosen == number).tolist()
            sentences = edit([texts[place] for place in places], rows[places], draws) if places else []
            for place, text in zip(places, sentences, strict=True):
                edited[place] = text
        return edited


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


def reversed_gradient(z: Tensor, scale: float) -> Tensor:
    """Returns ``z``; in the backward pass, its gradient is multiplied by ``-scale``. See Ganin and Lempitsky (2015,
    arXiv:1409.7495)."""
    result = z.view_as(z)  # the hook of z itself would also change other gradients of z
    if result.requires_grad:
        result.register_hook(lambda gradient: -scale * gradient)  # type: ignore[no-untyped-call]
    return result


def same_tokens(first: Mapping[str, Tensor], second: Mapping[str, Tensor], left: bool) -> Tensor:
    """Returns ``(n,)`` bool, True for the rows with the same token ids in two blocks ``(n, T)`` of any T."""
    lengths = [tokens["attention_mask"].sum(1) for tokens in (first, second)]
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
    """

    Options = AugCSEOptions
    summary = "an adversarial discriminator of the edits of --positive one-of (AugCSE)"
    recordable = True
    reads = frozenset({"positive", "other"})
    logged = ("edit_accuracy",)

    def __init__(self, options: AugCSEOptions, context: ModelContext) -> None:
        super().__init__(options, context)
        if "edits" not in context.shared:
            raise InputError("--loss-term augcse needs positives made by several edits; use --positive one-of")
        size = context.encoder.embedding_dim
        self.left = context.encoder.tokenizer.padding_side == "left"
        self.edits, self.purpose = context.shared["edits"]
        self.discriminator = nn.Sequential(
            nn.Dropout(options.dropout),
            nn.Linear(2 * size, 4 * size),
            nn.Tanh(),
            nn.Dropout(options.dropout),
            nn.Linear(4 * size, self.edits + 1),
        )

    @classmethod
    def implies(cls, options: AugCSEOptions) -> dict[str, Any]:
        return {"positive": "one-of"}

    def forward(self, views: Views, step: RowStep) -> tuple[Tensor, Tensor]:
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
            losses = binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
            return options.weight * losses.sum(), count
        return options.weight * cross_entropy(logits, label, reduction="sum"), count
